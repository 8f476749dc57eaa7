"""``python -m trial``: faults by chance for some time, and one table of what was found."""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trial import moves
from trial.crowd import SHARED, Crowd
from trial.faults import FAULTS
from trial.node import NoAnswerError, Node, Refused
from trial.observed import Processes, present
from trial.patience import PATIENCE
from trial.scene import Scene, SkippedFault

DISK_MEGABYTES: Final = 64
ROOT: Final = Path(__file__).parent.parent


@dataclass(slots=True)
class Row:
    """A line of the table."""

    times: int = 0
    findings: list[str] = field(default_factory=list)
    skipped: str = ""
    slowest: float = 0.0


class Trial:
    """One agent, its crowd, an observer beside, and the faults that are done to them."""

    def __init__(self, seed: int, names: Sequence[str], *, each: bool) -> None:
        self.seed = seed
        self.each = each
        self.rng = random.Random(seed)  # noqa: S311 - moments and victims, not secrets
        self.rows = {name: Row() for name in [*names, "the end"]}
        self.sampled: dict[str, Any] = {}
        folder = Path(tempfile.mkdtemp(prefix="trial-"))
        self.node = Node(folder, f"trial-{secrets.token_hex(4)}")
        if moves.can_be_made() and not {*moves.RESIZES, *moves.REBALANCES}.isdisjoint(names):
            self.node.policy = "dynamic"
        self.crowd = Crowd(self.node, self.node.name, random.Random(seed + 1))  # noqa: S311 - the same

    def run(self, seconds: float) -> None:
        """Everything, in rounds of all faults in an order by chance, until the time is over.

        Where ``each`` fault has to be done, it goes on for those that were not.
        """
        has_own_disk = self.node.mount(DISK_MEGABYTES)
        result = self.node.folder / "sampled.json"
        sampler = subprocess.Popen(
            [sys.executable, "-m", "trial.sampler", self.node.name, str(result)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert sampler.stdin is not None  # noqa: S101 - both are pipes
        assert sampler.stdout is not None  # noqa: S101 - the same
        try:
            sampler.stdout.readline()
            if problem := self.node.start():
                self.rows["the end"].findings.append(f"the first start: {problem}")
                return
            self.crowd.fill()
            self.rows["the end"].findings += [p for p in [self.crowd.settle()] if p]
            self._rounds(time.monotonic() + seconds, has_own_disk=has_own_disk)
            self._end()
        finally:
            sampler.stdin.close()
            sampler.wait(60 * PATIENCE)
            if result.exists():
                self.sampled = json.loads(result.read_text(encoding="utf-8"))
            self.node.remove_everything()

    def _rounds(self, deadline: float, *, has_own_disk: bool) -> None:
        while names := [n for n, row in self.rows.items() if n in FAULTS and not row.skipped]:
            for name in self.rng.sample(names, len(names)):
                row = self.rows[name]
                if time.monotonic() > deadline and (row.times or not self.each):
                    continue
                began = time.monotonic()
                print(f"{name} ...", end=" ", flush=True)
                scene = Scene(self.node, self.crowd, self.rng, has_own_disk)
                self._once(name, scene, row)
                row.times += not row.skipped
                row.findings += scene.findings
                row.slowest = max(row.slowest, time.monotonic() - began)
                verdict = row.skipped or "; ".join(scene.findings)[:600] or "ok"
                print(f"{time.monotonic() - began:.1f} s: {verdict}", flush=True)
                if self.node.process is None or self.node.process.poll() is not None:
                    return
            if time.monotonic() > deadline:
                return

    def _once(self, name: str, scene: Scene, row: Row) -> None:
        try:
            FAULTS[name](scene)
        except SkippedFault as reason:
            row.skipped = str(reason)
        except (Refused, NoAnswerError) as error:
            scene.findings.append(f"{type(error).__name__}: {error}")
        problem = self.crowd.settle(may_restart=frozenset(scene.may_restart))
        scene.check(not problem, problem)
        if problem:
            self._begin_anew()
        # A fault may have ended pods by their own wish; there are always some to do it to.
        while sum(not one.owns for one in self.crowd.wanted.values()) < SHARED // 2:
            self.crowd.add()

    def _begin_anew(self) -> None:
        """Let the faults that follow find an agent and pods, whatever has become of these."""
        self.node.begin_anew()
        for process in Processes(self.node.name).walk():
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        self.crowd.wanted.clear()
        self.crowd.unsure.clear()
        if problem := self.node.start():
            raise RuntimeError(f"no agent starts here any more: {problem}")
        self.crowd.fill()
        self.crowd.settle()

    def _end(self) -> None:
        """Delete everything; all CPUs are free then, and nothing is left of anybody."""
        row = self.rows["the end"]
        scene = Scene(self.node, self.crowd, self.rng, has_own_disk=False)
        for name in list(self.crowd.wanted):
            self.crowd.drop(name)
        if problem := self.crowd.settle():
            row.findings.append(problem)
        everything = len(present()) - 1
        self.crowd.add(owns=everything)
        name = next(iter(self.crowd.wanted), "")
        scene.check(name, f"{everything} CPUs should be free, and a pod that wants them is refused")
        if name:
            self.crowd.drop(name)
            scene.see_gone(name)
        status = self.node.stop()
        scene.check(status == 0, f"the agent's exit status is {status}")
        left = [*map(str, self.node.cgroups()), *map(str, self.node.supervisors())]
        left += [one.name for one in Processes(self.node.name).walk()]
        left += [str(one) for one in (self.node.state / "containers").glob("[0-9a-f]*")]
        scene.check(not left, f"left at the end: {', '.join(left[:5])}")
        row.findings += scene.findings
        row.times += 1

    def table(self) -> str:
        """The result."""
        lines = [f"{'fault':26} {'times':>5} {'longest':>8} {'findings':>8}"]
        for name, row in self.rows.items():
            if not row.times:
                lines.append(f"{name:26} not done: {row.skipped or 'its turn did not come'}")
                continue
            lines.append(f"{name:26} {row.times:5} {row.slowest:6.1f} s {len(row.findings):8}")
        seen = self.sampled
        switches = seen.get("switches")
        traced = "no tracing here" if switches is None else f"{switches} switches on owned CPUs"
        agent = (
            f"{self.node.starts} starts, the slowest {self.node.slowest_start:.1f} s; "
            f"{self.crowd.requests} requests of the crowd, {self.crowd.refused} refused, "
            f"{self.crowd.unanswered} unanswered (the agent was killed)"
        )
        kernel = (
            f"{seen.get('walks', 0)} walks, {seen.get('judged', 0)} processes beside an owner, "
            f"{traced}: {seen.get('strangers', '?')} strangers ({seen.get('foreign', 0)} by the "
            f"scheduler), {seen.get('misplaced', '?')} misplaced; {seen.get('unjudged', 0)} walks "
            "around a CPU that went or came"
        )
        kills = ", ".join(f"{step} {times}" for step, times in self.crowd.kills.most_common())
        moved = (
            f"{self.crowd.resized} resizes, {self.crowd.infeasible} infeasible, "
            f"{self.crowd.rebalanced} times rebalanced, {self.crowd.kills.total()} kills with a "
            f"move in flight ({kills}); {seen.get('moving', 0)} owners judged while they moved, "
            f"{seen.get('unsure', 0)} not to be judged, {seen.get('ran', 0)} threads seen where "
            "they ran last"
        )
        lines += ["", f"agent      {agent}", f"kernel     {kernel}", f"moves      {moved}"]
        findings = self.findings()
        lines += ["", *(f"FOUND {text}" for text in findings)]
        lines.append(f"{len(findings)} findings, seed {self.seed}")
        return "\n".join(lines)

    def findings(self) -> list[str]:
        """What was found, and what would have shown nothing."""
        found = [f"{name}: {text}" for name, row in self.rows.items() for text in row.findings]
        found += self.sampled.get("findings", [])
        if self.each:
            found += [f"{name}: was not done" for name, row in self.rows.items() if not row.times]
        if not self.sampled.get("judged"):
            found.append("the observer saw nobody beside an owner")
        moved = self.crowd.resized + self.crowd.rebalanced + self.crowd.kills.total()
        if moved and not self.sampled.get("moving"):
            found.append("the observer saw no owner while it moved")
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module; 0 when nothing was found, 1 when something was, 2 for a wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m trial", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long (300)")
    parser.add_argument("--seed", type=int, help="which faults, in which order; printed at the end")
    parser.add_argument("--only", default="", help="names of faults, with commas between")
    parser.add_argument("--resize", action="store_true", help="only those that resize owners")
    parser.add_argument(
        "--rebalance", action="store_true", help="only those that rebalance (or both kinds)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(FAULTS))
        return 0
    names = [name.strip() for name in options.only.split(",") if name.strip()]
    names += moves.RESIZES if options.resize else ()
    names += moves.REBALANCES if options.rebalance else ()
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"no such fault: {', '.join(unknown)} (--list prints them)")
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        parser.error("it takes root, cgroups and at least two CPUs")
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    # Whoever ends it wants nothing left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    trial = Trial(seed, names or list(FAULTS), each=bool(names))
    try:
        trial.run(options.seconds)
    except KeyboardInterrupt:
        print("interrupted")
    print(f"\n{trial.table()}")
    return 1 if trial.findings() else 0


if __name__ == "__main__":
    sys.exit(main())
