"""As whom a container's main process runs, and which of root's powers it cannot have.

A process sees the machine's own users: the groups of a user are those that the machine names.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from typing import Final

from msgspec import Struct

from pinfold.core.pod.security import CAPABILITIES, Security
from pinfold.ports.errors import RuntimeFailedError

_NON_ROOT: Final = "give runAsUser"


class Credentials(Struct, frozen=True):
    """What the main process takes on before it executes the command.

    ``user`` and ``group`` None stay the agent's, and so do ``groups``.  ``dropped`` are the numbers
    of capabilities that neither it nor what it executes can have.  ``home`` is the user's folder.
    """

    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] | None = None
    dropped: tuple[int, ...] = ()
    no_new_privileges: bool = False
    home: str = "/"

    def order(self) -> str:
        """The text for the supervisor, see ``privileges.py``; "" where everything stays."""
        if self.groups is None and not self.dropped and not self.no_new_privileges:
            return ""
        fields = (
            "" if self.user is None else str(self.user),
            "" if self.group is None else str(self.group),
            "-" if self.groups is None else ",".join(map(str, self.groups)),
            ",".join(map(str, self.dropped)),
            "1" if self.no_new_privileges else "",
        )
        return " ".join(field or "." for field in fields)


def credentials_of(security: Security) -> Credentials:
    """What a process that runs by itself takes on of a ``securityContext``.

    Raises:
        RuntimeFailedError: it cannot be in force; the texts are the kubelet's where it has one.
    """
    own = os.geteuid()
    user = own if security.run_as_user is None else security.run_as_user
    if security.run_as_non_root and user == 0:
        if security.run_as_user is None:
            problem = "container has runAsNonRoot and image will run as root"
            raise RuntimeFailedError(problem, f"a process runs as its agent does; {_NON_ROOT}")
        raise RuntimeFailedError(
            "container's runAsUser breaks non-root policy", "give another runAsUser"
        )
    dropped = tuple(sorted(map(CAPABILITIES.index, security.dropped)))
    home = _home(user)
    if not _changes(security):
        return Credentials(dropped=dropped, no_new_privileges=security.no_new_privileges, home=home)
    if own != 0:
        _check_own(security, own)
        return Credentials(dropped=dropped, no_new_privileges=security.no_new_privileges, home=home)
    group = _group(security, user)
    return Credentials(
        user,
        group,
        _groups(security, user, group),
        dropped,
        security.no_new_privileges,
        home,
    )


def _changes(security: Security) -> bool:
    """Whether user or groups are asked for."""
    return (
        security.run_as_user is not None
        or security.run_as_group is not None
        or bool(security.supplemental_groups)
        or security.strict_groups
    )


def _check_own(security: Security, own: int) -> None:
    """See that an agent without root is asked for what its processes are anyway."""
    have = {os.getegid(), *os.getgroups()}
    wanted = {security.run_as_group or os.getegid(), *security.supplemental_groups}
    strict = security.strict_groups and have != wanted
    if security.run_as_user not in (None, own) or security.run_as_group not in (
        None,
        os.getegid(),
    ):
        problem = f"the agent runs as user {own}, group {os.getegid()}, and can run nothing as"
        asked = f"user {security.run_as_user}, group {security.run_as_group}"
        raise RuntimeFailedError(f"{problem} {asked}", "run the agent as root")
    if not wanted <= have or strict:
        groups = ", ".join(map(str, security.supplemental_groups)) or "none"
        raise RuntimeFailedError(
            f"the agent runs as user {own}, and can give no other groups than its own: {groups}",
            "run the agent as root",
        )


def _group(security: Security, user: int) -> int:
    if security.run_as_group is not None:
        return security.run_as_group
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:
        # A container would get group 0, which on the machine itself is root's.
        raise RuntimeFailedError(
            f"runAsUser {user}: this machine has no such user, so no group is known for it",
            "give runAsGroup, or make the user",
        ) from None


def _groups(security: Security, user: int, group: int) -> tuple[int, ...]:
    found = {group, *security.supplemental_groups}
    if not security.strict_groups:
        # A user whom the machine does not know is in no groups.
        with contextlib.suppress(KeyError):
            found.update(os.getgrouplist(pwd.getpwuid(user).pw_name, group))
    return tuple(sorted(found))


def _home(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return "/"
