"""The trial's pods: what was asked for, what was acknowledged, and whether the kernel shows it."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trial.node import NoAnswerError, Node, Refused
from trial.observed import Process, Processes, born, online, present
from trial.patience import PATIENCE

SHARED: Final = 6
MOVERS: Final = 20
"""Containers where owners move, as far as there are CPUs for owners; the rest of them share."""

_SLEEPING: Final = f"while :; do sleep {0.2 * PATIENCE}; done"
_TURNS: Final = round(20000 / PATIENCE**2)
_BUSY: Final = (
    f"while :; do i=0; while [ $i -lt {_TURNS} ]; do i=$((i+1)); done; "
    f"sleep {0.05 * PATIENCE}; done"
)

SETTLED: Final = 60.0 * PATIENCE
"""Seconds after a fault in which everything has to be as it was asked for."""

Identity = tuple[int, int]


def manifest(  # noqa: PLR0913 - what is not said is as in most pods
    trial: str,
    name: str,
    script: str,
    *,
    owns: int = 0,
    escapes: bool = False,
    says: Mapping[str, str] | None = None,
    **spec: object,
) -> dict[str, Any]:
    """A pod with one container, whose processes bear the trial's marks.

    One that ``says`` something, by annotations, is one whose CPUs are changed while it runs.
    """
    amounts = {"cpu": str(owns), "memory": "32Mi"} if owns else {"memory": "32Mi"}
    resources = {"limits": amounts, "requests": amounts} if owns else {"requests": amounts}
    marks = {"TRIAL_POD": f"{trial}/{name}", **({"TRIAL_OWNS": str(owns)} if owns else {})}
    if escapes:
        marks["TRIAL_ESCAPES"] = "1"
    if says is not None:
        marks["TRIAL_MOVES"] = "1"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(says or {})},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "command": ["sh", "-c", script],
                    "env": [{"name": key, "value": value} for key, value in marks.items()],
                    "resources": resources,
                }
            ],
            **spec,
        },
    }


@dataclass(slots=True)
class Wanted:
    """A pod that was acknowledged; ``main`` is its main process, once it was seen.

    ``owns`` is how many CPUs it is to have, or one of ``maybe`` where nobody knows what became of a
    request to change that.
    """

    owns: int
    main: Identity | None = None
    moves: bool = False
    maybe: frozenset[int] = frozenset()


@dataclass(slots=True)
class Crowd:
    """Owners and shared pods that come and go, in a thread beside the faults.

    ``unsure`` are pods of which nobody knows: the agent did not answer when they were asked for, or
    asked away.
    """

    node: Node
    trial: str
    rng: random.Random
    wanted: dict[str, Wanted] = field(default_factory=dict)
    unsure: dict[str, Wanted] = field(default_factory=dict)
    requests: int = 0
    refused: int = 0
    unanswered: int = 0
    resized: int = 0
    infeasible: int = 0
    undone: list[str] = field(default_factory=list)
    """Moves that were begun, and answered with a failure."""
    rebalanced: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """Kills while owners moved, by the step that was on record last."""
    _number: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    # ------------------------------------------------------------------------------- requests

    def fill(self) -> None:
        """The shared pods that are always there, and one owner."""
        for _ in range(SHARED):
            self.add()
        self.add(owns=1)

    def add(self, owns: int = 0) -> None:
        """Ask for one more pod."""
        self._number += 1
        name = f"{'owner' if owns else 'shared'}-{self._number}"
        script = _SLEEPING if owns or self.rng.random() < 0.5 else _BUSY
        self._add(name, manifest(self.trial, name, script, owns=owns), Wanted(owns))

    def _add(self, name: str, pod: object, wanted: Wanted) -> None:
        self.unsure[name] = wanted
        answer = self._ask("POST", "/v1/pods", pod)
        if answer is None:
            return
        del self.unsure[name]
        if answer["phase"] != "Rejected":
            self.wanted[name] = wanted

    def drop(self, name: str) -> None:
        """Ask for a pod to go."""
        self.unsure[name] = self.wanted.pop(name)
        path = f"/v1/pods/default/{name}?grace={self.rng.choice([0, 0, 1])}"
        if self._ask("DELETE", path) is not None:
            del self.unsure[name]

    def fill_movers(self) -> None:
        """Owners whose CPUs can be changed, with some CPUs left for that, beside who shares."""
        free = len(present()) - 1
        most = min(MOVERS, free * 3 // 4)
        while (number := sum(one.moves for one in self.wanted.values())) < most:
            self._add_mover(self.rng.choice([1, 2]) if number < most // 4 else 1)
            if sum(one.moves for one in self.wanted.values()) == number:
                break  # it was refused: there are as many as there can be
        while len(self.wanted) + len(self.unsure) < MOVERS:
            self.add()

    def _add_mover(self, owns: int) -> None:
        self._number += 1
        name = f"mover-{self._number}"
        says = {
            "scale-down-grace-period.pinfold.dev/pod": self.rng.choice(["0", "0", "1"]),
            "resize-below-baseline.pinfold.dev/pod": self.rng.choice(["true", "false"]),
        }
        pod = manifest(self.trial, name, _SLEEPING, owns=owns, says=says)
        self._add(name, pod, Wanted(owns, moves=True))

    def resize(self, name: str, owns: int) -> None:
        """Ask for another number of CPUs for an owner that runs."""
        one = self.wanted[name]
        before = one.maybe
        one.maybe = before | {one.owns, owns}
        amounts = {"cpu": str(owns)}
        container = {"name": "main", "resources": {"requests": amounts, "limits": amounts}}
        try:
            answer = self._asked(
                "PATCH", f"/v1/pods/default/{name}", {"spec": {"containers": [container]}}
            )
        except Refused as error:
            # What takes too long is refused as well, and goes on.
            if self._look_whether_undone(error) or error.status != 503:
                one.maybe = before
            return
        if answer is None:
            return  # either may be so by now, or become so
        if not answer["feasible"]:
            one.maybe = before
            self.infeasible += 1
        else:
            one.owns, one.maybe = owns, frozenset()
            self.resized += answer["before"] != answer["after"]

    def rebalance(self) -> None:
        """Ask for better places for all who may move; then one goes, and leaves a better one."""
        answer: Any = {}
        try:
            answer = self._asked("POST", "/v1/rebalance")
        except Refused as error:
            self._look_whether_undone(error)
        if answer is None:
            return
        self.rebalanced += bool(answer.get("steps"))
        self.fill_movers()
        if movers := self._movers():
            self.drop(self.rng.choice(movers))

    def _look_whether_undone(self, error: Refused) -> bool:
        if is_undone := "undone" in str(error):
            self.undone.append(str(error))
        return is_undone

    def _movers(self) -> list[str]:
        return [name for name, one in self.wanted.items() if one.moves]

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """The answer; None where there is none, or an error (the pod stays unsure)."""
        with suppress(Refused):
            return self._asked(method, path, body)
        return None

    def _asked(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """The answer; None where there is none.  Raises Refused."""
        self.requests += 1
        try:
            return self.node.ask(method, path, body) or {}
        except NoAnswerError:
            self.unanswered += 1
            return None
        except Refused:
            self.refused += 1
            raise

    def coming_and_going(self) -> AbstractContextManager[None]:
        """Pods come and go meanwhile."""
        return self._meanwhile(self._come_and_go)

    def moving(self, *, rebalance: bool) -> AbstractContextManager[None]:
        """Owners are resized, and the node is rebalanced, meanwhile and without pause."""
        return self._meanwhile(lambda: self._move(rebalance=rebalance))

    @contextmanager
    def _meanwhile(self, what: Callable[[], None]) -> Iterator[None]:
        self._over.clear()
        thread = threading.Thread(target=what)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _come_and_go(self) -> None:
        while not self._over.is_set():
            owners = [name for name, one in self.wanted.items() if one.owns]
            shared = [name for name, one in self.wanted.items() if not one.owns]
            if self.rng.random() < 0.7:
                if owners:
                    self.drop(self.rng.choice(owners))
                else:
                    self.add(owns=1)
            elif len(shared) >= SHARED:
                self.drop(self.rng.choice(shared))
            else:
                self.add()
            self._over.wait(self.rng.uniform(0, 0.3))

    def _move(self, *, rebalance: bool) -> None:
        # Nobody answers while the agent is dead or starts.
        while not self._over.wait(0.002 if self.node.is_ready else 0.05):
            if not self.node.is_ready:
                continue
            if rebalance and self.rng.random() < 0.2:
                self.rebalance()
            elif movers := self._movers():
                name = self.rng.choice(movers)
                owns = self.wanted[name].owns
                self.resize(name, self.rng.choice([n for n in (1, 1, 2, 2, 3, 4) if n != owns]))

    # -------------------------------------------------------------------------------- looking

    def settle(self, *, may_restart: frozenset[str] = frozenset(), all_may: bool = False) -> str:
        """Wait until everything is as it was asked for; what is not, else "".

        Args:
            may_restart: pods whose containers the fault was allowed to end.
            all_may: whether it was allowed to end any.
        """
        if problem := self.node.until_ready():
            return problem
        deadline = time.monotonic() + SETTLED
        while (problems := self._problems()) and time.monotonic() < deadline:
            time.sleep(0.1 * PATIENCE)
        problems += self._killed(may_restart, all_may=all_may)
        self._learn()
        return "; ".join(problems[:6])

    def _problems(self) -> list[str]:
        try:
            if move := self.node.ask("GET", "/v1/status").get("move"):
                return [f"a plan of moves is in flight: {json.dumps(move)[:300]}"]
            pods = self.node.pods()
        except (NoAnswerError, Refused) as error:
            return [str(error)]
        for name, one in list(self.unsure.items()):
            # Whoever asked was not told: either is right, as long as the agent says which.
            phase = pods.get(name, {}).get("phase")
            if phase == "Terminating":
                return [f"{name} is being ended"]
            if phase in ("Admitted", "Running"):
                self.wanted[name] = replace(one, main=None)
            del self.unsure[name]
        found = [f"{name} is lost" for name in self.wanted if name not in pods]
        found += [
            f"{name} is {pod['phase']}: {pod.get('reason')} {pod.get('message')}"
            for name, pod in pods.items()
            if name in self.wanted and pod["phase"] != "Running"
        ]
        found += [
            f"{name} was deleted, and is {pod['phase']}"
            for name, pod in pods.items()
            if name not in self.wanted and pod["phase"] in ("Admitted", "Running", "Terminating")
        ]
        return found + self._in_the_kernel(pods)

    def _in_the_kernel(self, pods: Mapping[str, Mapping[str, Any]]) -> list[str]:
        living = [one for one in Processes(self.trial).walk() if not one.has_ended]
        by_pod: dict[str, list[Process]] = {}
        for process in living:
            by_pod.setdefault(process.pod, []).append(process)
        found = [f"{pod} is gone, and its processes run" for pod in by_pod.keys() - self.wanted]
        owned: dict[str, frozenset[int]] = {}
        for name, one in self.wanted.items():
            if name not in by_pod:
                found.append(f"{name} has no process")
                continue
            known = {c["pid"] for c in pods.get(name, {}).get("containers", ()) if c["pid"]}
            if not known <= {process.pid for process in by_pod[name]}:
                found.append(
                    f"{name} has the processes {known} on record, and others in the kernel"
                )
            if one.owns:
                owned[name] = frozenset().union(*(p.allowed for p in by_pod[name]))
                may = one.maybe or {one.owns}
                if len(owned[name]) not in may and len(online()) > one.owns:
                    said = [c.get("cpus") for c in pods.get(name, {}).get("containers", ())]
                    found.append(
                        f"{name} owns {' or '.join(map(str, sorted(may)))} CPUs and may run on "
                        f"{sorted(owned[name])}; the agent says {said}"
                    )
        for name, cpus in owned.items():
            found += [
                f"{process.name} may run on the CPUs of {name}"
                for process in living
                if process.pod != name and process.allowed & cpus
            ]
        return found

    def _killed(self, may_restart: frozenset[str], *, all_may: bool) -> list[str]:
        return [
            f"the main process of {name} was ended"
            for name, one in self.wanted.items()
            if one.main is not None
            and not all_may
            and name not in may_restart
            and born(one.main[0]) != one.main[1]
        ]

    def _learn(self) -> None:
        """Note the main processes as they are now."""
        with suppress(NoAnswerError, Refused):
            pods = self.node.pods()
            for name, one in self.wanted.items():
                pids = [c["pid"] for c in pods.get(name, {}).get("containers", ()) if c["pid"]]
                began = born(pids[0]) if pids else None
                one.main = None if began is None else (pids[0], began)
                if one.maybe and began is not None:
                    with suppress(OSError):
                        one.owns, one.maybe = len(os.sched_getaffinity(pids[0])), frozenset()
