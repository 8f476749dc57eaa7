"""What the cgroups above the pods have: the sum of what the pods have, on cgroup v2.

The kernel protects no more of a cgroup's memory than of those above it.  So each of these has what
the pods below have together: of both files, as a cgroup without ``memory.low`` of its own leaves
its children none, whatever its ``memory.min`` is.  A weight counts among siblings only, and pods on
two sides are none: so each side weighs as much for I/O as its pods do together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import CgroupGoneError, put, read, write
from pinfold.adapters.cgroup.limits import IO_WEIGHTS, shown
from pinfold.core.memory.protection import MEMORY_LOW, MEMORY_MIN
from pinfold.linux.kernel_files import subfolders
from pinfold.ports.cgroups import Limits

NONE: Final = Limits()
_FILES: Final = (MEMORY_MIN, MEMORY_LOW)
_OWN: Final = 100
"""The kernel's own weight."""
_MOST: Final = {"io.weight": 10_000, "io.bfq.weight": 1000}


def is_protecting(base: Path) -> bool:
    """Whether pods of the tree are protected, as far as the tree's own cgroup tells."""
    return any(_bytes(base / file) for file in _FILES)


def add_up(base: Path, sides: Iterable[Path], root: Path, changed: Limits = NONE) -> list[str]:
    """Give a tree and its sides what their pods have, and tell what is not in force above.

    Where no pod is protected, or weighed, nothing is done; ``changed`` is what one of them has been
    given.

    Raises:
        CgroupError: the kernel refuses one.
    """
    folders = [side for side in sides if side.is_dir()]
    _weigh(folders)
    return protect(base, folders, root, changed)


def protect(base: Path, folders: Sequence[Path], root: Path, changed: Limits = NONE) -> list[str]:
    """The half of :func:`add_up` that is about memory; the pods are below ``folders``."""
    if changed.protection == NONE.protection and not is_protecting(base):
        return []
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


def _weigh(sides: Iterable[Path]) -> None:
    """Have each side weigh what its pods do; all alike where all pods have the kernel's weight."""
    for file in IO_WEIGHTS:
        weights = {
            side: [_weight(side / pod / file) for pod in subfolders(side)]
            for side in sides
            if (side / file).exists()
        }
        plain = all(one == _OWN for pods in weights.values() for one in pods)
        sums = {side: _OWN if plain else sum(pods) for side, pods in weights.items()}
        # The kernel has a greatest weight, and what counts is how they compare.
        part = min(1.0, _MOST[file] / max(1, *sums.values())) if sums else 1.0
        for side, weight in sums.items():
            if _weight(side / file) != (wanted := max(1, round(weight * part))):
                write(side / file, str(wanted))


def _weight(path: Path) -> int:
    try:
        return int(shown(read(path)))
    except (CgroupGoneError, ValueError):
        return _OWN


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
