"""The CPUs that a machine was booted to keep free of other work.

Source: the kernel's ``kernel-parameters`` (``isolcpus``, ``nohz_full``, ``rcu_nocbs``, and its
lists of CPUs, which know ``all`` and ``N`` for the last one) and ``drivers/base/cpu.c``.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet, CPUSetError

_FLAGS: Final = frozenset({"domain", "nohz", "managed_irq"})
_LAST: Final = re.compile(r"\bN\b")


class BootIsolation(Struct, frozen=True):
    """What the kernel was booted with.

    ``isolated`` are out of all scheduling domains, so that nothing balances load there;
    ``nohz_full`` have no tick while one thread runs; of ``rcu_nocbs`` others run the callbacks.
    """

    isolated: CPUSet = CPUSet()
    nohz_full: CPUSet = CPUSet()
    rcu_nocbs: CPUSet = CPUSet()


def boot_isolation(
    command_line: str | None, present: CPUSet, *, isolated: CPUSet | None, nohz_full: str | None
) -> BootIsolation:
    """Put together what command line and kernel say.

    The kernel's own list of isolated CPUs may name those of cpuset partitions as well, which come
    and go and do not count: where the command line is known, it has to isolate any.

    Args:
        command_line: the kernel's; None or empty where it is not known.
        present: the CPUs that there are.
        isolated: ``/sys/devices/system/cpu/isolated``; None without the file.
        nohz_full: ``/sys/devices/system/cpu/nohz_full``; None without the file.
    """
    line = command_line or ""
    said = _isolcpus(line, present)
    found = said or CPUSet()
    if isolated is not None and (said is None or said or not line.strip()):
        found = isolated & found or isolated
    ticks = None if nohz_full is None else _cpus(nohz_full, present)
    if ticks is None:
        ticks = _word(line, "nohz_full", present)
    return BootIsolation(found & present, ticks & present, _word(line, "rcu_nocbs", present))


def parse_isolcpus(command_line: str) -> CPUSet:
    """The CPUs that ``isolcpus=`` takes out of scheduling domains; the last one counts.

    In ``isolcpus=[flag-list,]<cpu-list>`` flags without ``domain`` leave the CPUs in their
    domains.  A list that is none isolates nothing, as the kernel has it.
    """
    return _isolcpus(command_line, CPUSet()) or CPUSet()


def cpu_list(text: str, present: CPUSet) -> CPUSet | None:
    """The CPUs of such a parameter's value, whatever flags stand before them; None: it is none."""
    items = text.strip().split(",")
    while items and items[0] in _FLAGS:
        items.pop(0)
    return _cpus(",".join(items), present)


def _isolcpus(command_line: str, present: CPUSet) -> CPUSet | None:
    """The same; None for a list that cannot be read here."""
    found = re.findall(r"(?:^|\s)isolcpus=(\S+)", command_line)
    if not found:
        return CPUSet()
    items = found[-1].split(",")
    flags = []
    while items and items[0] in _FLAGS:
        flags.append(items.pop(0))
    if flags and "domain" not in flags:
        return CPUSet()
    return _cpus(",".join(items), present)


def _word(command_line: str, name: str, present: CPUSet) -> CPUSet:
    found = re.findall(rf"(?:^|\s){name}=(\S+)", command_line)
    return (_cpus(found[-1], present) or CPUSet()) & present if found else CPUSet()


def _cpus(text: str, present: CPUSet) -> CPUSet | None:
    """A list of the kernel's; None for what is none, such as ``(null)``."""
    if text.strip() == "all":
        return present
    try:
        return CPUSet.parse(_LAST.sub(str(max(present, default=0)), text))
    except CPUSetError:
        return None
