"""The cpusets above containers in a kubelet's tree, which hold everybody below them (cgroup v2).

A container runs on the CPUs that its own cpuset and all above it have in common.  So these are
*gates*: the cgroups of the QoS classes burstable and besteffort, and that of each Guaranteed pod
with a container that shares.  What a gate had before is on record before it is written for the
first time, and put back when nobody below needs it any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import CgroupError, PortError

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


class Cpusets(Protocol):
    """The cpusets of one hierarchy, by their folders."""

    @property
    def has_gates(self) -> bool:
        """Whether a cpuset cuts those below it, whatever they have."""

    def configured(self, folder: Path) -> CPUSet:
        """The CPUs that were written; none: those of the cpuset above.

        Raises:
            CgroupError: it is gone.
        """

    def effective(self, folder: Path) -> CPUSet:
        """The CPUs that are in force.

        Raises:
            CgroupError: it is gone.
        """

    def is_plain(self, folder: Path) -> bool:
        """Whether it is no partition, which others count on as it is."""

    def put(self, folder: Path, cpus: CPUSet) -> None:
        """Write the CPUs of a cpuset, where they are others.

        No CPUs mean those of the cpuset above.  The kernel does not take that while somebody is in
        it or below, and then every CPU that the machine can have means the same.

        Raises:
            CgroupError: the kernel does not take them.
        """

    def cut(self, folder: Path, wanted: CPUSet) -> bool:
        """Move a container off CPUs, if that is one write; its own threads are to be confirmed.

        Those in cgroups below it did not have these CPUs then.

        Returns:
            Whether it was.
        """

    def set(self, folder: Path, wanted: CPUSet, mems: CPUSet | None) -> tuple[CPUSet, CPUSet]:
        """Write a container's cpuset; one that is gone is no error.

        Returns:
            The CPUs that it had to leave, and those that are in force.

        Raises:
            CgroupError: others than wanted are in force.
        """

    async def confirm(self, folders: Sequence[Path], cpus: CPUSet, *, below: bool = True) -> None:
        """See that no thread of these, or (``below``) of a cgroup in them, may run elsewhere.

        Raises:
            CgroupError: one may.
        """


class GateRecord(Protocol):
    """What the gates had before, kept where the end of this process does not take it away."""

    def load(self) -> Mapping[Path, CPUSet]:
        """What was saved last since the machine was started."""

    def save(self, before: Mapping[Path, CPUSet]) -> None:
        """Keep this.

        Raises:
            PortError: it cannot be kept.
        """


class RefusedGateError(Exception):
    """A gate is not to be had."""


class Gates:
    """The gates that an agent uses, or that one before it has used.

    Args:
        cpusets: the kernel's.
        record: where their former CPUs are kept; None: none are used.
    """

    def __init__(self, cpusets: Cpusets, record: GateRecord | None) -> None:
        self._cpusets = cpusets
        self._record = record if cpusets.has_gates else None
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
        self._told: set[Path] = set()
        self._foreign: CPUSet | None = None

    def open(self) -> None:
        """Begin with those of an agent before this one.

        Raises:
            PortError: nobody knows which these are.
        """
        if self._record is not None:
            self.before = dict(self._record.load())
            self.inherited = set(self.before)

    def above(self, folder: Path) -> Path | None:
        """The gate above a container's cgroup."""
        return None if self._record is None else gate_of(folder)

    def write(self, gate: Path, cpus: CPUSet) -> None:
        """Let those below have these CPUs at most.

        Raises:
            RefusedGateError: it is a partition, cannot be written, or what it had cannot be kept.
            CgroupError: it is gone, or cannot be read.
        """
        if gate not in self.before:
            self._take(gate)
        # What somebody has kept from those below stays kept from them.
        wanted = cpus & self.before[gate] if self.before[gate] else cpus
        if not wanted:
            raise RefusedGateError
        try:
            self._cpusets.put(gate, wanted)
        except CgroupGoneError:
            raise
        except CgroupError as error:
            raise RefusedGateError from error
        is_new = gate not in self.written
        self.written[gate] = wanted
        effective = self._cpusets.effective(gate)
        if not effective or effective - wanted:
            raise RefusedGateError
        if is_new:
            self.on_change()

    def _take(self, gate: Path) -> None:
        """Begin to use a gate: what it has is on record before it is changed."""
        before = self._cpusets.configured(gate)
        if not self._cpusets.is_plain(gate):
            raise RefusedGateError
        self.before[gate] = before
        try:
            self._save()
        except PortError as error:
            del self.before[gate]
            raise RefusedGateError from error

    def let_go(self, gate: Path) -> None:
        """Put back what a gate had, unless somebody has written something else there.

        Raises:
            CgroupError: the kernel does not take it.
        """
        if gate not in self.before:
            return
        with suppress(CgroupGoneError):
            if self.written.get(gate) in {None, self._cpusets.configured(gate)}:
                self._cpusets.put(gate, self.before[gate])
        self.written.pop(gate, None)
        self.inherited.discard(gate)
        del self.before[gate]
        with suppress(PortError):  # it is put back once more then, at the next start
            self._save()
        self.on_change()

    def _save(self) -> None:
        if self._record is not None:
            self._record.save(self.before)

    def mend(self, gate: Path) -> bool:
        """Look whether somebody else has written a gate, and make it right at once."""
        wanted = self.written.get(gate)
        try:
            if wanted is None or self._cpusets.configured(gate) == wanted:
                return False
            found = self._cpusets.effective(gate)
            self._cpusets.put(gate, wanted)
        except CgroupError:
            return True  # the reconciliation says what it is
        self.rewritten += 1
        if gate not in self._told:
            # Somebody who does it again and again is told once, and counted.
            self._told.add(gate)
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
