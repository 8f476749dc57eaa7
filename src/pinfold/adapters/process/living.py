"""The supervisors that live, as the kernel shows them, whatever has become of the files.

A supervisor's command line names its container's folder and whose the container is; its only child
is the main process.  Source: proc_pid_cmdline(5), proc_pid_stat(5).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.process.documents import Identity
from pinfold.adapters.process.processes import ProcessId, identify, parent_of

_PROGRAM: Final = b"supervisor.main()"
_OPTIONS: Final = [b"-I", b"-S", b"-c"]


class Supervisor(Struct, frozen=True):
    """A supervisor that lives; ``identity`` is None where an older version started it.

    ``waits`` tells whether its main process has not executed its command yet.
    """

    process: ProcessId
    folder: Path
    identity: Identity | None
    waits: bool

    def main(self) -> ProcessId | None:
        """Its child; None where it has none (any more)."""
        for pid in _pids():
            if parent_of(pid) == self.process.pid:
                child = identify(pid)
                if child is not None and parent_of(pid) == self.process.pid:
                    return child
        return None

    def executed(self) -> ProcessId | None:
        """Its child, if that has executed its command."""
        main = self.main()
        if main is None or _command(main.pid) == _command(self.process.pid):
            return None
        return main


def supervisors(root: Path) -> dict[str, Supervisor]:
    """The supervisors of the containers below ``root``, by the container's id."""
    same: dict[str, dict[int, list[bytes]]] = {}
    for pid in _pids():
        command = _command(pid)
        if len(command) < 6 or command[1:4] != _OPTIONS or _PROGRAM not in command[4]:
            continue
        folder = Path(os.fsdecode(command[5]))
        if _is_ours(pid) and _is_same(folder.parent, root):
            same.setdefault(folder.name, {})[pid] = command
    found = {}
    for name, commands in same.items():
        for pid, command in commands.items():
            process = identify(pid)
            # What it has forked looks as itself until it executes something else.
            if process is None or parent_of(pid) in commands:
                continue
            identity = Identity.decode(command[6]) if len(command) > 6 else None
            waits = any(parent_of(other) == pid for other in commands)
            found[name] = Supervisor(process, Path(os.fsdecode(command[5])), identity, waits)
    return found


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - ten times as fast


def _command(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    return []


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    return False


def _is_same(folder: Path, root: Path) -> bool:
    if folder == root:
        return True
    with contextlib.suppress(OSError):
        return folder.samefile(root)
    return False
