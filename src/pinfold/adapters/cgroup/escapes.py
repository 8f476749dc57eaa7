"""Processes of containers that run outside of their container's cgroup.

Nothing in the kernel tells that a process has moved itself elsewhere.  So whoever was seen in a
container's cgroup is looked for when it is not there any more, and every process that appears on
the machine is looked at once.  It is a container's where its parent is; where its parent has ended
(so that an ancestor of the container's has inherited it), where its first environment says so.
Somebody whom a daemon has started for a container (cron, ``at``, systemd) is a child of the
daemon's, and none of the container's.

Not found is who was never seen in the cgroup, whose parents had ended when it was looked, and who
has dropped its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from pinfold.adapters.cgroup.files import failure
from pinfold.adapters.cgroup.moving import KILL_PAUSE, Patience, ended, unending
from pinfold.adapters.cgroup.names import container_folder, key_of, pod_folder
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.affinity import allowed
from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.processes import began, lives, parse_cgroups, pids, stat_of
from pinfold.linux.signals import send_signal
from pinfold.ports.cgroups import ObservedContainer, Stray
from pinfold.ports.errors import ContainerKey, NoRoomError

_AT_ONCE: Final = 250
"""Processes that are looked at before somebody else may go on."""
_REMEMBERED: Final = 1024
"""Containers that have ended and whose processes are still looked for."""
_UID: Final = b"PINFOLD_POD_UID="
_NAME: Final = b"PINFOLD_CONTAINER="
_INIT: Final = 1


class _Fresh(NamedTuple):
    """A process that is looked at for the first time, the oldest first."""

    start: int
    pid: int
    parent: int
    inode: int


class Escapes:
    """Knows who belongs to which container, and who of them is elsewhere.

    ``home`` gives the container in all of whose cgroups a process is, from the text of
    ``/proc/PID/cgroup``; None for any other.
    """

    def __init__(self, home: Callable[[str], ContainerKey | None]) -> None:
        self._home_of = home
        # Of both, by pid: when the process began, as a pid is used again.
        self._members: dict[ContainerKey, dict[int, int]] = {}
        self._strays: dict[ContainerKey, dict[int, int]] = {}
        self._owners: dict[int, ContainerKey] = {}
        self._ancestors: dict[ContainerKey, frozenset[int]] = {}
        # By pid: the inode of its folder in /proc, which is another one when the pid is used again.
        self._nobodys: dict[int, int] = {}
        self._looking = asyncio.Lock()

    def adopt(self, key: ContainerKey, pids: Iterable[int]) -> None:
        """Processes belong to a container from now on, whosever they were."""
        pids = list(pids)
        for pid in pids:
            self._leave(pid)
            if (start := began(pid)) is not None:
                self._join(key, pid, start)
        if pids:
            known = self._ancestors.get(key, frozenset())
            self._ancestors[key] = known.union(_ancestors(pids[0]))

    def forget(self, key: ContainerKey) -> None:
        """A container has ended; who still appears of it is a stray all the same."""
        for pid in list(self._members.get(key, ())):
            self._leave(pid)
        self._members.pop(key, None)
        ended = [one for one in self._ancestors if one not in self._members]
        for one in ended[:-_REMEMBERED]:
            del self._ancestors[one]

    async def look(
        self, inside: Mapping[int, ContainerKey]
    ) -> dict[ContainerKey, tuple[Stray, ...]]:
        """Find those who are elsewhere now.

        Args:
            inside: who is in which container's cgroup, as of a moment ago.
        """
        for key, known in self._members.items():
            for pid in [pid for pid in known if inside.get(pid) != key]:
                self._suspect(key, pid)
        for number, (pid, key) in enumerate(inside.items()):
            if pid not in self._owners and (start := began(pid)) is not None:
                self._join(key, pid, start)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        async with self._looking:
            await self._look_at_fresh()
        return self._found()

    async def end(self, key: ContainerKey, *, wait: float) -> None:
        """SIGKILL everybody of a container who is elsewhere; raises CgroupError."""
        patience = Patience(wait)
        seen: set[int] = set()
        while left := await self._of(key):
            seen.update(stray.pid for stray in left)
            for stray in left:
                _kill(stray.pid, self._strays[key][stray.pid])
            if patience.ends():
                raise unending([stray.pid for stray in left])
            await asyncio.sleep(KILL_PAUSE)
        await ended(seen)

    async def _of(self, key: ContainerKey) -> tuple[Stray, ...]:
        """Those of a container who live, now that its cgroup is empty."""
        for pid in list(self._members.get(key, ())):
            self._suspect(key, pid)
        async with self._looking:
            if key not in self._ancestors:
                # It ended while no agent was there: whoever was looked at may be its all the same.
                self._ancestors[key] = frozenset(_ancestors(os.getpid()))
                self._nobodys = {}
            await self._look_at_fresh()
        return self._found().get(key, ())

    def _join(self, key: ContainerKey, pid: int, start: int) -> None:
        self._members.setdefault(key, {})[pid] = start
        self._owners[pid] = key

    def _leave(self, pid: int) -> int | None:
        """Forget a process; when it began, where it was known."""
        key = self._owners.pop(pid, None)
        if key is None:
            return None
        start = self._members.get(key, {}).pop(pid, None)
        return self._strays.get(key, {}).pop(pid, start)

    def _suspect(self, key: ContainerKey, pid: int) -> None:
        """A member is not where it was: it has ended, or is a stray."""
        now = began(pid)
        start = self._leave(pid)
        if start is not None and now == start:
            self._stray(key, pid, start)

    def _stray(self, key: ContainerKey, pid: int, start: int) -> None:
        self._strays.setdefault(key, {})[pid] = start
        self._owners[pid] = key

    async def _look_at_fresh(self) -> None:
        for number, one in enumerate(sorted([one async for one in self._fresh()])):
            if (key := self._owner_of(one.parent) or self._marked(one)) is not None:
                self._stray(key, one.pid, one.start)
            else:
                self._nobodys[one.pid] = one.inode
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    def _owner_of(self, pid: int) -> ContainerKey | None:
        """Whose a process is, unless another one has its pid now."""
        key = self._owners.get(pid)
        if key is None:
            return None
        start = self._members.get(key, {}).get(pid, self._strays.get(key, {}).get(pid))
        return key if began(pid) == start else None

    async def _fresh(self) -> AsyncIterator[_Fresh]:
        """The processes that nobody has looked at yet."""
        try:
            everybody = pids()
        except OSError as error:
            raise failure("/proc", error) from None
        before, self._nobodys = self._nobodys, {}
        for number, pid in enumerate(everybody):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if pid in self._owners:
                continue
            try:
                inode = os.stat(f"/proc/{pid}").st_ino  # noqa: PTH116 - thousands of them
            except OSError:
                continue
            if before.get(pid) == inode:
                self._nobodys[pid] = inode
            elif (found := stat_of(pid)) is not None and not found.is_defunct:
                yield _Fresh(found.start, pid, found.parent, inode)

    def _marked(self, one: _Fresh) -> ContainerKey | None:
        """The container that an orphan's environment names."""
        heirs = [key for key, above in self._ancestors.items() if one.parent in above]
        if not heirs:
            return None
        try:
            words = Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        uids = [word for word in words if word.startswith(_UID)]
        names = [word for word in words if word.startswith(_NAME)]
        if not uids or not names:
            return None
        key = ContainerKey(
            os.fsdecode(uids[0].removeprefix(_UID)), os.fsdecode(names[0].removeprefix(_NAME))
        )
        if key not in heirs:
            return None
        # Another agent may have a pod of the same name, and then of the same uid.
        place = f"/{pod_folder(key.pod_uid)}/{container_folder(key)}"
        paths = parse_cgroups(_cgroups(one.pid)).values()
        return None if any(f"{place}/" in f"{path}/" for path in paths) else key

    def _found(self) -> dict[ContainerKey, tuple[Stray, ...]]:
        """The strays that are still there, and still elsewhere."""
        found = {}
        for key, known in list(self._strays.items()):
            strays = []
            for pid, start in list(known.items()):
                text = _cgroups(pid)
                home = self._home_of(text)
                if began(pid) != start or not lives(pid) or home == key:
                    self._leave(pid)
                else:
                    strays.append(Stray(pid, start, _shown(text)))
            if strays:
                found[key] = tuple(strays)
            elif key not in self._members:
                del self._strays[key]
        return found


def with_strays(
    found: dict[ContainerKey, ObservedContainer], strays: Mapping[ContainerKey, tuple[Stray, ...]]
) -> None:
    """Add those who are elsewhere to what was observed; also of containers that are gone."""
    for key, its in strays.items():
        cpus = CPUSet(cpu for stray in its for cpu in allowed(stray.pid) or ())
        gone = ObservedContainer(
            key, exclusive=False, configured=None, effective=cpus, populated=True
        )
        found[key] = replace(found.get(key, gone), strays=its)


def place_in(path: str, name: str) -> list[str]:
    """The parts of a cgroup's path below the folder of a tree; none where it is not in the tree."""
    parts = path.strip("/").split("/")
    return parts[parts.index(name) + 1 :] if name in parts else []


def key_in(parts: list[str]) -> ContainerKey | None:
    """The container whose folders a place begins with."""
    return key_of(parts[0], parts[1]) if len(parts) > 1 else None


def _ancestors(pid: int) -> set[int]:
    """Who may inherit the orphans of a process."""
    found = {_INIT}
    while (one := stat_of(pid)) is not None and one.parent not in found | {0}:
        pid = one.parent
        found.add(pid)
    return found


def _cgroups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(errors="surrogateescape")
    except OSError as error:
        gone_or_raise(f"/proc/{pid}/cgroup", error)
        return ""


def _shown(text: str) -> str:
    """One of the cgroups of a process, for a message."""
    own = parse_cgroups(text)
    return own.get("cpuset", own.get("", "/"))


def _kill(pid: int, start: int) -> None:
    """End exactly this process; one that cannot be told from another is left."""
    with contextlib.suppress(OSError, NoRoomError):
        send_signal(pid, start, signal.SIGKILL)
