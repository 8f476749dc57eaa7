"""Whose process it is that is to become a container: only his own may be given away.

Source: ``proc_pid_stat(5)``, ``proc_pid_status(5)``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pinfold.adapters.process.processes import identify, parent_of
from pinfold.ports.held_process import ForeignProcessError, HeldProcess, Peer

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_DEEPEST: Final = 64
_ROOT: Final = 0


def process_of(peer: Peer, pid: int, *, agent: int) -> HeldProcess:
    """The process ``pid``, which is the peer itself or descends from it.

    What the agent (its pid) has started is its own, whatever that descends from.

    Raises:
        ForeignProcessError: it is not, or is the agent's, or another user's.
        RuntimeFailedError: no more files can be open, so nobody knows.
    """
    asker = identify(peer.pid) if peer.pid else None
    if asker is None or asker.start / _TICKS > peer.since:
        raise ForeignProcessError(
            "the process that asks has gone, or is in another PID namespace than the agent"
        )
    held = identify(pid)
    if held is None:
        raise ForeignProcessError(f"there is no process {pid}")
    one: int | None = pid
    for _ in range(_DEEPEST):
        if one == agent:
            raise ForeignProcessError(f"process {pid} belongs to the agent itself")
        if one == peer.pid or not one:
            break
        one = parent_of(one)
    if one != peer.pid:
        raise ForeignProcessError(
            f"process {pid} is neither process {peer.pid}, which asks, nor descends from it"
        )
    if peer.uid != _ROOT and _users(pid) != {peer.uid}:
        raise ForeignProcessError(f"process {pid} runs as another user than {peer.uid}, who asks")
    # Only now it is sure that all this was said of one and the same process.
    if identify(pid) != held or identify(peer.pid) != asker:
        raise ForeignProcessError(f"process {pid} has ended meanwhile")
    return HeldProcess(held.pid, held.start)


def _users(pid: int) -> set[int]:
    """Its real, effective, saved and file system user."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    lines = [line for line in text.splitlines() if line.startswith("Uid:")]
    return {int(word) for line in lines for word in line.split()[1:]}
