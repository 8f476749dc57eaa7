"""Whose rights a container runs with.

Source: the Kubernetes API (``core/v1`` ``SecurityContext``); capabilities(7).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

CAPABILITIES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
"""By number, as in ``linux/capability.h``."""

ALL: Final = "ALL"


class Security(Struct, frozen=True):
    """What holds for one container; None is what its image or its agent has.

    ``supplemental_groups`` has the pod's ``fsGroup``, too; with ``strict_groups`` those that the
    machine or the image names for the user are left out.  Capabilities are without ``CAP_``, and
    may be ``ALL``.  ``seccomp`` and ``apparmor`` are a profile's ``type``, "" where none is asked
    for.
    """

    privileged: bool = False
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool = False
    supplemental_groups: tuple[int, ...] = ()
    strict_groups: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    no_new_privileges: bool = False
    read_only_root: bool = False
    seccomp: str = ""
    apparmor: str = ""

    @property
    def dropped(self) -> frozenset[str]:
        """The capabilities that are taken away; of a privileged container none is.

        Adding one that is dropped as well keeps it only where all are dropped, as in runtimes.
        """
        if self.privileged:
            return frozenset()
        if ALL in self.drop_capabilities:
            kept = CAPABILITIES if ALL in self.add_capabilities else self.add_capabilities
            return frozenset(CAPABILITIES).difference(kept)
        return frozenset(self.drop_capabilities)
