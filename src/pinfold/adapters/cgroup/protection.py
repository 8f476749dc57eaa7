"""Memory protection of the cgroups above the pods, on cgroup v2.

The kernel protects no more of a cgroup's memory than of those above it.  So each of these has what
the pods below have together: of both files, as a cgroup without ``memory.low`` of its own leaves
its children none, whatever its ``memory.min`` is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import CgroupGoneError, put, read
from pinfold.core.memory.protection import MEMORY_LOW, MEMORY_MIN, Protection
from pinfold.linux.kernel_files import subfolders

UNPROTECTED: Final = Protection()
_FILES: Final = (MEMORY_MIN, MEMORY_LOW)


def is_protecting(base: Path) -> bool:
    """Whether pods of the tree are protected, as far as the tree's own cgroup tells."""
    return any(_bytes(base / file) for file in _FILES)


def protect(
    base: Path, sides: Iterable[Path], root: Path, changed: Protection = UNPROTECTED
) -> list[str]:
    """Give a tree and its sides what their pods have, and tell what is not in force above.

    Where no pod is protected nothing is done; ``changed`` is what one of them has been given.

    Raises:
        CgroupError: the kernel refuses one.
    """
    if changed == UNPROTECTED and not is_protecting(base):
        return []
    folders = [side for side in sides if side.is_dir()]
    missing: list[str] = []
    for file in _FILES:
        total = 0
        for side in folders:
            pods = sum(_bytes(side / pod / file) for pod in subfolders(side))
            _set(side / file, pods)
            total += pods
        _set(base / file, total)
        missing += _lacking(base, file, total, root)
    return missing


def _lacking(base: Path, file: str, total: int, root: Path) -> Iterator[str]:
    """The cgroup above the tree that has the least, where that is too little."""
    above = [one for one in base.parents if one != root and root in one.parents]
    amounts = [(_bytes(one / file), str(one / file)) for one in above]
    if amounts and (least := min(amounts))[0] < total:
        yield f"{file} is in force for {least[0]} bytes of {total}: {least[1]} is {least[0]}"


def _set(path: Path, amount: int) -> None:
    if path.exists():
        put(path, str(amount))


def _bytes(path: Path) -> int:
    """What a file says; everything is 2**63, as far as sums go, and what is not there nothing."""
    try:
        text = read(path)
    except CgroupGoneError:
        return 0
    return int(text) if text.isdigit() else 1 << 63
