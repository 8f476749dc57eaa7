"""Whether a kubelet pins containers itself: then this node has no place for a second who does.

Two CPU managers on one node would undo each other's cpusets.  What a kubelet does is in its state
file, which it writes at its start under every policy, in one step (a file that is renamed).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.state.cpu_manager_state import CheckpointError, CPUManagerCheckpoint, detect_layout

NONE: Final = "none"
STATIC: Final = "static"
PERIOD: Final = 10.0
"""Seconds between two looks; a kubelet itself writes its cpusets anew as often."""

_REMEDY: Final = (
    "to let pinfold pin: drain the node, set the kubelet's cpuManagerPolicy to none, stop the "
    "kubelet, remove this file, start the kubelet; to leave it to the kubelet: remove pinfold"
)


class KubeletPolicy(Enum):
    """What a kubelet's state file says of its CPU manager."""

    ABSENT = "absent"
    NONE = "none"
    STATIC = "static"
    UNKNOWN = "unknown"


class GuardVerdict(Struct, frozen=True):
    """Whether containers may be pinned here; ``problem`` says why not ("" where they may)."""

    policy: KubeletPolicy
    problem: str = ""

    @property
    def may_pin(self) -> bool:
        """Whether the kubelet leaves the containers' CPUs alone, as far as anybody can tell."""
        return not self.problem


def judge_kubelet(content: bytes | None, file: str) -> GuardVerdict:
    """What a kubelet's ``cpu_manager_state`` means for somebody else who pins containers.

    Only a file that is not there (no kubelet has run yet) and one that says none let him.  A file
    that cannot be understood, or that names a policy that nobody knows, does not: the kubelet that
    wrote it may be the static one, and whoever waits for a repair does less harm than who fights.
    The checksum is not looked at, for the name is all that counts: a kubelet with a layout that is
    not known here says none just as well, and a file with a wrong checksum starts no kubelet.

    Args:
        content: the file's bytes; None where there is no such file.
        file: its name, for the problem.
    """
    if content is None:
        return GuardVerdict(KubeletPolicy.ABSENT)
    try:
        name = CPUManagerCheckpoint.parse(content, detect_layout(content)).policy_name
    except CheckpointError as error:
        return unreadable_state(file, str(error))
    if name == NONE:
        return GuardVerdict(KubeletPolicy.NONE)
    if name == STATIC:
        return GuardVerdict(
            KubeletPolicy.STATIC,
            f"{file}: the kubelet's CPU manager policy is static, so pinfold only audits and pins "
            f"nothing ({_REMEDY})",
        )
    return GuardVerdict(
        KubeletPolicy.UNKNOWN,
        f"{file}: the kubelet's CPU manager policy is {name[:40]!r}, which is not known here, so "
        f"pinfold only audits and pins nothing ({_REMEDY})",
    )


def unreadable_state(file: str, problem: str) -> GuardVerdict:
    """The verdict about a state file that cannot be read or understood."""
    return GuardVerdict(
        KubeletPolicy.UNKNOWN,
        f"{file}: cannot tell the kubelet's CPU manager policy ({problem}), so pinfold only audits "
        f"and pins nothing (see what `pinfold state check {file}` says)",
    )
