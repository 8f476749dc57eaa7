"""The cpusets above containers in a kubelet's tree, which hold everybody below them (cgroup v2).

A container runs on the CPUs that its own cpuset and all above it have in common.  So these are
*gates*: the cgroups of the QoS classes burstable and besteffort, and that of each Guaranteed pod
with a container that shares.  What a gate had before is on record before it is written for the
first time, and put back when nobody below needs it any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.adapters.cgroup.runtime.found_cpusets import FoundCpusets
from pinfold.adapters.cgroup.runtime.gate_record import GateRecord, UsedGate
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import CgroupError, PortError

_NONE: Final = CPUSet()
_TREE: Final = re.compile(r"(?:.+-)?kubepods(?:\.slice)?")


def gate_of(folder: Path) -> Path | None:
    """The gate above a container's cgroup; None where it is in no kubelet's tree.

    ``kubepods/burstable/podUID/ID`` (cgroup driver cgroupfs) and
    ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/PREFIX-ID.scope``
    (systemd) are below their QoS class; a Guaranteed pod is beside these.
    """
    parts = folder.parts
    # The innermost tree is that of the kubelet whose container it is.
    for index in range(len(parts) - 3, -1, -1):
        tree, name = parts[index], parts[index + 1]
        if _TREE.fullmatch(tree) is None:
            continue
        is_slice = tree.endswith(".slice")
        begin = f"{tree.removesuffix('.slice')}-" if is_slice else ""
        if is_slice and not (name.startswith(begin) and name.endswith(".slice")):
            continue
        inner = name.removeprefix(begin).removesuffix(".slice" if is_slice else "")
        if inner in {"burstable", "besteffort"} or inner.startswith("pod"):
            return Path(*parts[: index + 2])
    return None


class RefusedGateError(Exception):
    """A gate is not to be had."""


class Gates:
    """The gates that an agent uses, or that one before it has used.

    Args:
        cpusets: the kernel's.
        record: where their former CPUs are kept; None: none are used.
        report: is told of one that cannot be put back.
    """

    def __init__(
        self,
        cpusets: FoundCpusets,
        record: GateRecord | None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cpusets = cpusets
        self._record = record if cpusets.has_gates else None
        self._report = report
        self._kept: dict[Path, UsedGate] = {}
        """What is on record."""
        self.before: dict[Path, CPUSet] = {}
        """What those had that are not put back."""
        self.written: dict[Path, CPUSet] = {}
        """What was written into those that are used."""
        self.inherited: set[Path] = set()
        """Those of an agent before this one, until everybody below them was found."""
        self.refused: set[Path] = set()
        self.rewritten = 0
        """How often somebody else has written one."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when there are others than before."""
        self._asked: dict[Path, tuple[CPUSet, CPUSet]] = {}
        self._told: set[tuple[Path, str]] = set()
        self._foreign: CPUSet | None = None

    def open(self) -> None:
        """Begin with those of an agent before this one; raises PortError."""
        if self._record is not None:
            self._kept = dict(self._record.load())
            self.before = {gate: used.before for gate, used in self._kept.items()}
            self.inherited = self.before.keys() - self.written.keys()

    def above(self, folder: Path) -> Path | None:
        """The gate above a container's cgroup."""
        return None if self._record is None else gate_of(folder)

    def write(self, gate: Path, cpus: CPUSet, owned: CPUSet = _NONE) -> None:
        """Let those below have these CPUs at most; ``owned`` are those of owners among them.

        Raises:
            RefusedGateError: it is a partition, cannot be written, or what it had cannot be kept.
            CgroupError: it is gone, or cannot be read.
        """
        now = self._cpusets.configured(gate)
        if gate not in self.before:
            if not self._cpusets.is_plain(gate):
                raise RefusedGateError
            self.before[gate] = now
        elif not self._is_ours(gate, now):
            self._keep_limit(gate, now, cpus, owned)
        # What somebody has kept from those below stays kept from them.
        wanted = cpus & self.before[gate] if self.before[gate] else cpus
        if not wanted:
            raise RefusedGateError
        try:
            self._note(gate, now, wanted)
        except PortError as error:
            if gate not in self._kept:
                del self.before[gate]
            raise RefusedGateError from error
        try:
            self._cpusets.put(gate, wanted)
        except CgroupGoneError:
            raise
        except CgroupError as error:
            raise RefusedGateError from error
        is_new = gate not in self.written
        self.written[gate], self._asked[gate] = wanted, (cpus, owned)
        effective = self._cpusets.effective(gate)
        if not effective or effective - wanted:
            raise RefusedGateError
        if is_new:
            self.on_change()

    def _is_ours(self, gate: Path, now: CPUSet) -> bool:
        """Whether a gate has what was written there last, by this agent or the one before."""
        if gate in self.written:
            return now == self.written[gate]
        return gate in self._kept and now in (self.before[gate], *self._kept[gate].written)

    def _keep_limit(self, gate: Path, now: CPUSet, cpus: CPUSet, owned: CPUSet) -> None:
        """What somebody else has written is what a gate has without us, from now on.

        Unless those below could not do with it: they stay where they are.
        """
        if not now or (now & cpus and owned <= now):
            self.before[gate] = now

    def _note(self, gate: Path, now: CPUSet, wanted: CPUSet) -> None:
        """Have on record what a gate had, and what it may have, before it is written."""
        known, before = self._kept.get(gate), self.before[gate]
        if known is None or known.before != before or wanted not in known.written:
            # To have each on the disk would take longer than all the rest of a change, and is worth
            # nothing once the machine stops.
            sync = known is None or known.before != before
            self._save(self._kept | {gate: UsedGate(before, (now, wanted))}, sync=sync)

    def let_go(self, gate: Path) -> None:
        """Put back what a gate had, unless somebody has written something else there.

        Raises:
            CgroupError: the kernel does not take it.
        """
        if gate not in self.before:
            return
        with suppress(CgroupGoneError):
            if self._is_ours(gate, self._cpusets.configured(gate)):
                self._cpusets.put(gate, self.before[gate])
        self.written.pop(gate, None)
        self._asked.pop(gate, None)
        self.inherited.discard(gate)
        del self.before[gate]
        kept = {one: used for one, used in self._kept.items() if one != gate}
        with suppress(PortError):  # it is put back once more then, at the next start
            self._save(kept, sync=True)
        self.on_change()

    def try_to_let_go(self, gate: Path) -> None:
        """The same of one that nobody needs: one that stays as it is harms nobody, and is told."""
        try:
            self.let_go(gate)
        except CgroupError as error:
            if (gate, error.problem) not in self._told:
                self._told.add((gate, error.problem))
                self._report(f"{gate} cannot have what it had before: {error}")

    def _save(self, kept: dict[Path, UsedGate], *, sync: bool) -> None:
        if self._record is not None:
            self._record.save(kept, sync=sync)
        self._kept = kept

    def mend(self, gate: Path) -> bool:
        """Look whether somebody else has written a gate, and make it right at once."""
        wanted = self.written.get(gate)
        try:
            if wanted is None or self._cpusets.configured(gate) == wanted:
                return False
            found = self._cpusets.effective(gate)
            try:
                self.write(gate, *self._asked[gate])
            except RefusedGateError:
                self._cpusets.put(gate, self.written[gate])
        except CgroupError:
            return True  # the reconciliation says what it is
        self.rewritten += 1
        if (gate, "") not in self._told:
            # Somebody who does it again and again is told once, and counted.
            self._told.add((gate, ""))
            self._foreign = found
        return True

    def found(self, pool: CPUSet) -> CPUSet:
        """The shared pool as the gates have it, or had it when somebody else had written one."""
        foreign, self._foreign = self._foreign, None
        if foreign is not None:
            return foreign
        for gate, wanted in self.written.items():
            with suppress(CgroupError):
                effective = self._cpusets.effective(gate)
                if effective - wanted:
                    return effective
        return pool
