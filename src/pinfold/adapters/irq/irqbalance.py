"""Telling a running ``irqbalance`` which CPUs it has to keep off.

It listens on ``/run/irqbalance/irqbalancePID.sock``: one command for each connection, from root
only (``SCM_CREDENTIALS``).  ``settings cpus LIST`` bans CPUs in place of those that it has found
out by itself (``IRQBALANCE_BANNED_CPULIST``, isolated CPUs), ``settings cpus NULL`` goes back to
these; ``setup`` answers with what is in force, a mask after the word ``BANNED``.  It heeds a
command in its next round.  Source: irqbalance's ``sock_handle`` and ``setup_banned_cpus``.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.processes import pids, stat_of
from pinfold.ports.interrupts import Balancer

SOCKETS: Final = Path("/run/irqbalance")
_NAME: Final = re.compile(r"irqbalance([0-9]+)\.sock")
_COMMAND: Final = "irqbalance"
_PATIENCE: Final = 1.0
_MOST: Final = 1 << 16
_LONGEST: Final = 500
"""Bytes of a command; of a longer one it takes nothing."""


class Told(Struct, frozen=True, kw_only=True):
    """What an irqbalance was told: ``before`` is what it had banned by itself."""

    pid: int
    before: CPUSet
    banned: CPUSet


class Plan(Struct, frozen=True):
    """What one is to be told: ``command`` is None where it has that already, or does not answer.

    ``told`` is what we are answerable for once that is done, ``undone`` whether it is nothing more.
    """

    place: Path
    balancer: Balancer
    told: Told | None = None
    command: str | None = None
    undone: bool = False


class IrqBalance:
    """Every irqbalance whose socket is in a folder, and whether one runs without."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._known: Balancer | None = None

    def plan(self, cpus: CPUSet, before: Iterable[Told]) -> list[Plan]:
        """Ask each of them what it keeps off of, so that it keeps off ``cpus`` besides.

        Args:
            cpus: the CPUs; none: only those that it had banned before.
            before: what was told until now.
        """
        known = {one.pid: one for one in before}
        plans = []
        for pid, place in self._listening():
            try:
                plans.append(_plan(place, _ask(place, "setup"), cpus, known.get(pid), pid))
            except ConnectionRefusedError:
                continue  # it has ended, and its file is left
            except OSError as error:
                plans.append(Plan(place, _untold(pid, place, error), known.get(pid)))
        if not plans and cpus and (deaf := self._without_socket()) is not None:
            plans.append(Plan(self._sockets, deaf))
        return plans

    @staticmethod
    def carry_out(plans: Iterable[Plan]) -> tuple[tuple[Told, ...], tuple[Balancer, ...]]:
        """Tell them.

        Returns:
            What they were told and have not been told to forget, and how each of them does.
        """
        told, found = [], []
        for plan in plans:
            balancer, is_over = plan.balancer, plan.undone
            if plan.command is not None:
                try:
                    _ask(plan.place, plan.command)
                except OSError as error:
                    balancer, is_over = _untold(balancer.pid, plan.place, error), False
            if plan.told is not None and not is_over:
                told.append(plan.told)
            found.append(balancer)
        return tuple(told), tuple(found)

    def _listening(self) -> list[tuple[int, Path]]:
        try:
            names = sorted(os.listdir(self._sockets))  # noqa: PTH208 - names are all that is wanted
        except OSError:
            return []
        matches = [(name, _NAME.fullmatch(name)) for name in names]
        return [(int(found[1]), self._sockets / name) for name, found in matches if found]

    def _without_socket(self) -> Balancer | None:
        """One that runs and cannot be told; looked for again when it has ended."""
        if self._known is None or not _is_irqbalance(self._known.pid):
            pid = next((pid for pid in pids() if _is_irqbalance(pid)), None)
            self._known = None if pid is None else Balancer(pid, problem=self._deaf(pid))
        return self._known

    def _deaf(self, pid: int) -> str:
        return (
            f"irqbalance (process {pid}) has no socket in {self._sockets} and may move interrupts "
            "back; set IRQBALANCE_BANNED_CPULIST for it, or stop it"
        )


def _plan(place: Path, answer: str, cpus: CPUSet, known: Told | None, pid: int) -> Plan:
    now = _banned(answer)
    if known is None:
        if not cpus:
            return Plan(place, Balancer(pid, now))
        known = Told(pid=pid, before=now, banned=now)
    if not cpus:
        command = f"settings cpus {known.before or 'NULL'}"
        return Plan(place, Balancer(pid, now), known, command, undone=True)
    wanted = known.before | cpus
    command = f"settings cpus {wanted}"
    if len(command) >= _LONGEST:
        raise OSError(errno.E2BIG, "the list of CPUs is longer than it takes")
    told = Told(pid=pid, before=known.before, banned=wanted)
    return Plan(place, Balancer(pid, now), told, command if now != wanted else None)


def _untold(pid: int, place: Path, error: OSError) -> Balancer:
    said = error.strerror or error
    return Balancer(pid, problem=f"irqbalance was not told to keep off: {place}: {said}")


def _banned(answer: str) -> CPUSet:
    words = answer.split()
    try:
        return CPUSet.parse_hex(words[words.index("BANNED") + 1])
    except (ValueError, IndexError, CPUSetError):
        raise OSError(errno.EPROTO, f"unknown answer {answer[:80]!r}") from None


def _ask(place: Path, command: str) -> str:
    """One command, and its answer, "" where it has none; raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(place))
        credentials = struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())
        ancillary = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]
        connection.sendmsg([command.encode()], ancillary)
        answer = b""
        while len(answer) < _MOST and (part := connection.recv(4096)):
            answer += part
    return answer.decode(errors="replace")


def _is_irqbalance(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and not stat.is_over and stat.comm == _COMMAND
