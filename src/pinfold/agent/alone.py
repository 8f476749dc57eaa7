"""CPUs for one command where no agent is: a list that the commands of a user share, and affinities.

Every command sees who else has CPUs, takes its own, and moves the others off them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from pinfold.adapters.affinity import Affinity
from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.run_record import Entry, RunRecord
from pinfold.admission.admission import NodeState, decide_near
from pinfold.admission.decision import Decision
from pinfold.admission.settling import resume, settle
from pinfold.config.agent import DEFAULT_NODE
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.descriptors import file_limit, open_files
from pinfold.linux.processes import began
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey, NoRoomError

RECORD: Final = "alone.json"

_FILES: Final = 4
"""Those of an event loop, and one for what is read meanwhile."""


class Alone:
    """This machine, as far as this user, whose list is in ``folder``, may use it.

    Raises:
        MachineError: this machine cannot be read.
        NodeError: it has too few CPUs for a node.
    """

    def __init__(self, folder: Path, *, remedy: str = "") -> None:
        self._planner = Planner(open_machine(None), DEFAULT_NODE, rules=SOUND)
        self._record = RunRecord(folder / RECORD, remedy=remedy)
        self.others = 0
        """How many commands had something when it was last decided."""

    @property
    def machine(self) -> Machine:
        """What this machine is."""
        return self._planner.machine

    def take(
        self,
        pod: Pod,
        manifest: Mapping[str, Any],
        pid: int,
        near: CPUSet | None = None,
        *,
        required: bool = False,
    ) -> Decision:
        """Give CPUs to the one container of a pod, whose process waits; nothing if it is rejected.

        ``manifest`` is the pod as the next command is to read it; it is better on the CPUs in
        ``near``, and where that is ``required`` it rather does not run than on others.

        Raises:
            PortError: the list cannot be used, or the kernel refuses.
        """
        with self._record.locked() as entries:
            state, self.others = self._state(entries), len(entries)
            decision = decide_near(self._planner.node, state, pod, near, required=required)
            if decision.admitted:
                given = [str(allocation.cpus) for allocation in decision.allocations.values()]
                cpus = given[0] if given else None
                entries[pod.uid] = Entry(pid, began(pid) or 0, cpus, json.dumps(manifest))
                _move(entries, settle(state, decision).ledger.default)
        return decision

    def give_back(self, uid: str) -> None:
        """Take back what a pod had; raises PortError."""
        with self._record.locked() as entries:
            entries.pop(uid, None)
            _move(entries, self._state(entries).ledger.default)

    def _state(self, entries: Mapping[str, Entry]) -> NodeState:
        """What runs now, with the CPUs that this process may not use taken for offline."""
        usable = Affinity().usable()
        state = self._planner.empty_with(self._planner.view.topology.cpus - usable)
        for uid, entry in entries.items():
            pod = workload_from_api(json.loads(entry.manifest), admitted=True).pod
            if (cpus := entry.exclusive) is not None:
                ledger = state.ledger.with_pod(uid, {pod.containers[0].name: cpus})
                state = replace(state, ledger=ledger)
            state = resume(state, pod)
        return state


def _move(entries: Mapping[str, Entry], pool: CPUSet) -> None:
    """Have everybody where he belongs; raises PortError."""
    # An event loop that gets only some of its files leaves a traceback.
    if open_files() + _FILES > (limit := file_limit()):
        raise NoRoomError(
            f"the command is not pinned: only {limit} files may be open", "raise ulimit -n"
        )
    asyncio.run(_pin(entries, pool))


async def _pin(entries: Mapping[str, Entry], pool: CPUSet) -> None:
    """Everybody who shares moves first, then the owners are where they belong."""
    affinity = Affinity()
    usable = affinity.usable()
    await affinity.open(pool & usable)
    sharing_first = sorted(entries.items(), key=lambda item: item[1].cpus is not None)
    for uid, entry in sharing_first:
        if began(entry.pid) != entry.started:
            continue  # it has ended meanwhile
        key = ContainerKey(uid, "main")
        await affinity.place(key, Placement(cpus=entry.exclusive))
        await affinity.enter(key, entry.pid)
