"""CPUs, NUMA nodes and interrupts, as far as exclusive CPUs are concerned.

Sources: the kernel's ``ABI/testing/sysfs-devices-system-cpu``, ``ABI/stable/sysfs-devices-node``,
``core-api/irq/irq-affinity.rst``.
"""

from __future__ import annotations

from typing import Final

from pinfold.adapters.procfs.files import KernelFiles, SnapshotError
from pinfold.audit.snapshot import Irq
from pinfold.core.values.cpuset import CPUSet

_CPUS: Final = "/sys/devices/system/cpu"
_NODES: Final = "/sys/devices/system/node"
_OWNER_MAY_WRITE: Final = 0o200
_TIMER: Final = ("timer",)
"""The first timer of a PC: its affinity looks writable, and a write gives an I/O error."""

_NOT_ACTIONS: Final = frozenset(
    {
        "affinity_hint",
        "effective_affinity",
        "effective_affinity_list",
        "node",
        "smp_affinity",
        "smp_affinity_list",
        "spurious",
    }
)


def read_online(files: KernelFiles) -> CPUSet:
    """The CPUs that are online; raises SnapshotError."""
    online = files.cpus(f"{_CPUS}/online")
    if not online:
        raise SnapshotError(
            f"{_CPUS}/online: missing or empty",
            "mount sysfs; a captured tree needs proc and sys at its top",
        )
    return online


def read_siblings(files: KernelFiles, online: CPUSet) -> dict[int, CPUSet]:
    """The hardware threads of each CPU's core; raises SnapshotError."""
    found: dict[int, CPUSet] = {}
    for cpu in online:
        if cpu not in found:
            folder = f"{_CPUS}/cpu{cpu}/topology"
            threads = files.cpus(f"{folder}/thread_siblings_list")
            if threads is None:
                threads = files.cpus(f"{folder}/core_cpus_list")
            core = (threads or CPUSet()) | CPUSet([cpu])
            found.update(dict.fromkeys(core, core))
    return found


def read_nodes(files: KernelFiles) -> dict[int, CPUSet]:
    """The CPUs of each NUMA node; none where the kernel has no nodes; raises SnapshotError."""
    found: dict[int, CPUSet] = {}
    for name in files.names(_NODES):
        digits = name.removeprefix("node")
        if digits != name and digits.isascii() and digits.isdigit() and len(digits) < 9:
            found[int(digits)] = files.cpus(f"{_NODES}/{name}/cpulist") or CPUSet()
    return dict(sorted(found.items()))


def read_irqs(files: KernelFiles) -> tuple[Irq, ...]:
    """The interrupts that have a handler, by number.

    One is managed when the kernel says so (debugfs), lets not even root write its affinity, or it
    is the PC's timer.

    Raises:
        SnapshotError: a file is not what it should be.
    """
    found = []
    numbers = (name for name in files.names("/proc/irq") if name.isascii() and name.isdigit())
    for number in sorted(int(name) for name in numbers if len(name) < 9):
        folder = f"/proc/irq/{number}"
        actions = _actions(files, number)
        affinity = files.cpus(f"{folder}/smp_affinity_list") if actions else None
        if affinity is None:
            continue
        mode = files.mode(f"{folder}/smp_affinity_list")
        described = files.text(f"/sys/kernel/debug/irq/irqs/{number}") if files.is_live else None
        is_fixed = mode is not None and not mode & _OWNER_MAY_WRITE
        found.append(
            Irq(
                number,
                affinity,
                # Empty until the interrupt is first set up.
                files.cpus(f"{folder}/effective_affinity_list") or None,
                actions,
                is_fixed or actions == _TIMER or "IRQD_AFFINITY_MANAGED" in (described or ""),
            )
        )
    return tuple(found)


def _actions(files: KernelFiles, number: int) -> tuple[str, ...]:
    text = files.text(f"/sys/kernel/irq/{number}/actions")
    if text is not None:
        return tuple(name for name in text.strip().split(",") if name)
    # Kernels without that file have a folder for each handler.
    names = files.names(f"/proc/irq/{number}")
    return tuple(sorted(name for name in names if name not in _NOT_ACTIONS))
