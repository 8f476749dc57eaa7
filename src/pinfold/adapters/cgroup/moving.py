"""Moving processes into a cgroup and ending those in one, however fast they fork."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from pinfold.adapters.cgroup.files import write
from pinfold.adapters.cgroup.folders import members
from pinfold.linux.processes import began, lives
from pinfold.ports.errors import CgroupError

_PATIENCE: Final = 3
"""Looks that may find new processes before all are stopped while they are moved."""

_STALLED: Final = 200
"""Looks in a row that find as many outside as any look before: they are born as fast as moved."""
_MOST_BORN: Final = 20_000
"""Processes that may be moved in such looks, each of which takes the longer the more they find."""
_AT_ONCE: Final = 100
"""Processes that are moved before somebody else may go on."""
_PAUSE: Final = 0.001
KILL_PAUSE: Final = 0.005
_GENERATIONS: Final = 20
"""How often in one look it is looked for children of those that were just killed."""

_LONGEST_LOOK: Final = 10 * KILL_PAUSE
_LAST_BREATH: Final = 1.0


class Patience:
    """Seconds for which something was looked at again and again.

    What a look takes longer than it should is not counted: a machine that is slow, or a program
    that was stopped for a while, is no reason for blame.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = asyncio.get_running_loop().time()

    def ends(self) -> bool:
        """Take note of a look; whether there is no patience left."""
        now = asyncio.get_running_loop().time()
        self._left -= min(now - self._looked, _LONGEST_LOOK)
        self._looked = now
        return self._left < 0


class Freeze(Protocol):
    """Stops and lets go all processes of a cgroup at once."""

    def __call__(self, *, frozen: bool) -> None:
        """Stop them, or let them go."""


async def gather(wanted: Callable[[], list[int]], folders: Sequence[Path], freeze: Freeze) -> bool:
    """Move processes with all their threads into cgroups, until none is left; whether any was.

    A single look is enough for a single process; where there are more, children may have been
    born behind a look's back, and two looks in a row have to find nothing.  What keeps forking is
    stopped in the first of the folders, and let go when all are there.

    Raises:
        CgroupError: the kernel does not move one, or they come faster than they can be moved.
    """
    looks = quiet = stalled = born = 0
    least: float = math.inf
    moved_any = frozen = False
    try:
        while True:
            pids = wanted()
            moved = await _move_all(pids, folders)
            moved_any |= moved > 0
            looks += 1
            quiet = 0 if moved else quiet + 1
            if quiet == 2 or (quiet and len(pids) < 2):
                return moved_any
            # Not the time decides: the machine may be slow, and who moves them may be stopped.
            if moved < least:
                least, stalled, born = moved, 0, 0
            else:
                stalled, born = stalled + 1, born + moved
            if stalled > _STALLED or born > _MOST_BORN:
                raise CgroupError(
                    f"{folders[0]}: processes such as {pids[0]} fork faster than they can be moved"
                )
            if moved and looks >= _PATIENCE and not frozen:
                freeze(frozen=True)
                frozen = True
            await asyncio.sleep(_PAUSE if looks > 1 else 0)
    finally:
        if frozen:
            freeze(frozen=False)


async def _move_all(pids: list[int], folders: Sequence[Path]) -> int:
    """Move those that are elsewhere; how many that were."""
    moved: set[int] = set()
    for folder in folders if pids else ():
        inside = set(members(folder))
        for number, pid in enumerate(pid for pid in pids if pid not in inside):
            if move(folder, pid):
                moved.add(pid)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
    return len(moved)


def move(folder: Path, pid: int) -> bool:
    """Move a process with all its threads into a cgroup; False when it is gone, or a zombie.

    The kernel takes a zombie without a word, and does not move it.  Raises CgroupError.
    """
    if not lives(pid):
        return False
    try:
        write(folder / "cgroup.procs", str(pid))
    except CgroupError as error:
        if lives(pid):
            raise CgroupError(f"process {pid}: {error.problem}", error.remedy) from None
        return False
    return True


async def end_all(pids: Callable[[], list[int]], *, wait: float, freeze: Freeze) -> None:
    """SIGKILL every process until none is left.

    Frozen first, so that none can fork away while they are ended one after the other; where there
    is no freezer, those that were born meanwhile are looked for at once.

    Raises:
        CgroupError: processes are left after ``wait`` seconds (see :class:`Patience`).
    """
    patience = Patience(wait)
    seen: set[int] = set()
    while left := pids():
        seen.update(left)
        freeze(frozen=True)
        _kill(pids)
        freeze(frozen=False)
        if patience.ends():
            raise unending(left)
        await asyncio.sleep(KILL_PAUSE)
    await ended(seen)


def _kill(pids: Callable[[], list[int]]) -> None:
    killed: set[int] = set()
    for _ in range(_GENERATIONS):
        born = [pid for pid in pids() if pid not in killed]
        if not born:
            return
        for pid in born:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed.update(born)


async def ended(pids: Iterable[int]) -> None:
    """Wait a moment for processes that have left their cgroup to be through with dying.

    The kernel takes a process out of its cgroup at the beginning of its end.
    """
    patience = Patience(_LAST_BREATH)
    while any(began(pid) is not None for pid in pids):
        if patience.ends():
            return
        await asyncio.sleep(_PAUSE)


def unending(pids: list[int]) -> CgroupError:
    """What is said of processes that SIGKILL does not end."""
    return CgroupError(
        f"processes {', '.join(map(str, pids[:10]))} do not end after SIGKILL",
        "they wait in the kernel for a device or a file server",
    )
