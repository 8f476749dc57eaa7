"""From a path to a tree."""

from __future__ import annotations

import stat
from pathlib import Path

from pinfold.adapters.machines.tree import DirectoryTree, LiveTree, Tree, find_machine
from pinfold.core.machine.machine import MachineError


def open_tree(path: Path) -> Tree:
    """Open a captured tree: a directory, or a ``.tar``, ``.tar.gz``, ``.tar.bz2``, ``.tar.xz``.

    The tree is the directory that holds ``sys/``, or the one such directory in it.

    Raises:
        MachineError: there is nothing readable, or no ``sys/devices/system/cpu`` in it.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MachineError(
            f"{path}: {reason}; give a directory or a tar archive that holds sys/"
        ) from None
    if stat.S_ISDIR(mode):
        return _open_directory(path)
    if not stat.S_ISREG(mode):
        raise MachineError(f"{path}: neither a directory nor a file that holds a capture")
    # The archive formats cost a third of the start-up time and are mostly not needed.
    from pinfold.adapters.machines.archive import read_archive  # noqa: PLC0415 - see above

    return read_archive(path)


def _open_directory(path: Path) -> Tree:
    absolute = path.resolve()
    if absolute == Path("/"):
        return LiveTree()
    top = find_machine(DirectoryTree(path, absolute.name), path)
    return DirectoryTree(path / top, top) if top else DirectoryTree(path, absolute.name)
