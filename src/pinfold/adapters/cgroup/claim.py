"""Whose a tree of cgroups is: a lock on the tree's own folder, taken before anything is changed.

Two agents with one tree would end each other's containers, which their records do not know.  The
lock is on the folder itself and not on a file elsewhere, so that agents with other state folders,
in other mount namespaces or containers, find the same one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pinfold.adapters.cgroup.folders import make, remove_if_empty
from pinfold.linux.locks import PATIENCE, SECOND_AGENT, HeldError, Lock, folder_of, lock
from pinfold.ports.errors import CgroupError


class TreeClaim:
    """The right to a tree, whose folder in the cpuset hierarchy, ``base``, is locked.

    ``parts`` are the other folders that the tree cannot be without.
    """

    def __init__(self, base: Path, *parts: Path) -> None:
        self.base = base
        self._parts = parts
        self._lock: Lock | None = None
        self._was_had = False

    def missing(self) -> str:
        """The folder that is gone, or is another one than was locked; "" while all is there."""
        if not self._holds:
            return str(self.base)
        return next((str(part) for part in self._parts if not part.is_dir()), "")

    @property
    def _holds(self) -> bool:
        return self._lock is not None and self._lock.in_place

    @property
    def is_lost(self) -> bool:
        """Whether the folder was locked, and is not what is at its path any more."""
        return self._was_had and not self._holds

    def check(self) -> None:
        """Raise CgroupError where the tree is lost: another agent may have it by now."""
        if self.is_lost:
            raise CgroupError(f"{self.base}: the cgroup tree is not this agent's any more")

    def take(self, *, patience: float = PATIENCE) -> None:
        """Lock the folder, which is made where it is missing; nothing where it is held already.

        ``patience`` is seconds for an agent that was just killed to let go; nothing else goes on.

        Raises:
            CgroupError: another agent has it, or it cannot be made.
        """
        if self._holds:
            return
        self._let_go()
        try:
            self._lock = lock(self.base, self._made, patience=patience)
            self._was_had = True
        except HeldError as held:
            raise CgroupError(
                f"{self.base}: another agent{held.who} has this cgroup tree: its cgroupName is "
                f"{self.base.name}, too",
                f"stop that one, or {SECOND_AGENT}",
            ) from None
        except OSError as error:
            raise CgroupError(f"{self.base}: locking it: {error.strerror}") from None

    def release(self) -> None:
        """Let others have it, and remove it if nothing is in there; again is no error."""
        self._was_had = False
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            if self._lock.in_place:
                remove_if_empty(self.base)
            self._lock.release()
            self._lock = None

    def _made(self) -> int:
        while True:
            make(self.base)
            try:
                return folder_of(self.base)()
            except FileNotFoundError:
                continue  # somebody has removed it in between


@contextmanager
def left_alone(base: Path) -> Iterator[bool]:
    """Keep agents out of a tree that nobody has; whether that is so, or it is this process's own.

    Nothing is made.
    """
    held: Lock | None = None
    try:
        held = lock(base, folder_of(base))
    except HeldError as error:
        free = error.pid == os.getpid()
    except OSError:
        free = True  # there is none
    else:
        free = True
    try:
        yield free
    finally:
        if held is not None:
            remove_if_empty(base)
            held.release()
