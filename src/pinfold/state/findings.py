"""What the doctor finds in a state file, and what it has to know for that."""

from __future__ import annotations

import shlex
from enum import Enum

from msgspec import Struct

from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS, gate_enabled
from pinfold.core.kubelet.versions import KubeletVersion
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.layouts import Layout, StateForm, StateForms


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """A kubelet does not start on this file."""
    WARNING = "warning"
    """It starts, and something is lost or shared."""
    NOTE = "note"
    """Worth knowing."""


class Finding(Struct, frozen=True):
    """One thing that is wrong: ``what`` and ``where``, ``why`` it matters, and what mends it.

    ``fix`` is a command, or a sentence where no command can help.
    """

    severity: Severity
    what: str
    where: str
    why: str
    fix: str


class Circumstances(Struct, frozen=True):
    """What is known about the node that the file belongs to; ``None`` where nothing is.

    ``machine`` is the spelling of the machine for the commands that findings name, ``version`` the
    kubelet's and ``pod_level`` whether its gate PodLevelResourceManagers is on.
    """

    path: str = "cpu_manager_state"
    topology: CPUTopology | None = None
    machine: str | None = None
    reserved: CPUSet | None = None
    strict_cpu_reservation: bool = False
    policy: str | None = None
    pods: frozenset[str] | None = None
    version: KubeletVersion | None = None
    pod_level: bool | None = None

    def form(self, table: StateForms, layout: Layout) -> StateForm:
        """How the node's kubelet reads and writes the files of ``table``.

        Where its version is not known, it is the one that writes in ``layout``; where the feature
        gate is not known, it is as by default.
        """
        if self.version is None:
            version, pod_level = table.writer(layout)
        else:
            version = self.version
            pod_level = gate_enabled(POD_LEVEL_RESOURCE_MANAGERS, {}, version)
        return table.at(version, pod_level=pod_level if self.pod_level is None else self.pod_level)

    def repair(self, *extra: str) -> str:
        """The repair command for this file, with what is known about the node."""
        words = ["pinfold state repair", shlex.quote(self.path), *extra]
        if self.topology is not None:
            named = self.machine and f"--machine {shlex.quote(self.machine)}"
            words.append(named or "--this-machine")
        if self.reserved is not None:
            words.append(f"--reserved-cpus {shlex.quote(str(self.reserved))}")
        if self.strict_cpu_reservation:
            words.append("--policy-option strict-cpu-reservation=true")
        return " ".join(words)
