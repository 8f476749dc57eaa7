"""CPUs, cores, sockets and dies, from ``/sys/devices/system/cpu``.

Rules: CPUs of one siblings file and one ``core_id`` are a core (a Bulldozer module has two
``core_id``s, so it is two cores, for hwloc and for the kubelet); CPUs of one
``physical_package_id`` are a socket, whatever the siblings say; where the kernel does not know
the id (-1, s390 and Itanium), the siblings make the socket and its id is None.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from msgspec import Struct

from pinfold.adapters.machines.reader import Reader
from pinfold.adapters.machines.tree import CPU_DIRECTORY
from pinfold.core.machine.boot import BootIsolation, boot_isolation
from pinfold.core.machine.machine import Socket
from pinfold.core.values.cpuset import CPUSet


class CpuFiles(Struct, frozen=True):
    """What the files of one CPU say; None where there is no such file.

    ``siblings`` are the threads of its core, ``package_cpus`` the CPUs of its socket, both as
    read; ``book_id`` and ``drawer_id`` are those of s390.
    """

    cpu: int
    core_id: int | None = None
    package_id: int | None = None
    die_id: int | None = None
    siblings: CPUSet | None = None
    package_cpus: CPUSet | None = None
    book_id: str | None = None
    drawer_id: str | None = None


class CpuFolder(Struct, frozen=True):
    """The CPUs of a tree.

    ``online_file`` is the content of ``cpu/online`` if it is there; ``files`` has a row for each
    CPU with a directory.
    """

    present: CPUSet
    online: CPUSet
    online_file: CPUSet | None
    boot: BootIsolation
    files: Mapping[int, CpuFiles]


def read_cpus(reader: Reader, command_line: str) -> CpuFolder:
    """Read the CPUs; ``command_line`` is the kernel's, for what it isolates.

    Raises:
        MachineError: a file is not what it should be, or no CPU is online.
    """
    directories = reader.numbered(CPU_DIRECTORY, "cpu")
    present = reader.cpu_list(f"{CPU_DIRECTORY}/present")
    online_file = reader.cpu_list(f"{CPU_DIRECTORY}/online")
    if not present:
        present = CPUSet(directories)
    if online_file:
        online = online_file
    else:
        online_file = None
        online = CPUSet(
            cpu for cpu in present if reader.number(f"{CPU_DIRECTORY}/cpu{cpu}/online") != 0
        )
    present |= online
    if not online:
        raise reader.error(CPU_DIRECTORY, "no CPU is online")
    boot = boot_isolation(
        command_line,
        present,
        isolated=reader.cpu_list(f"{CPU_DIRECTORY}/isolated"),
        nohz_full=reader.raw(f"{CPU_DIRECTORY}/nohz_full"),
    )
    return CpuFolder(
        present=present,
        online=online,
        online_file=online_file,
        boot=boot,
        files={cpu: _cpu_files(reader, cpu, online=cpu in online) for cpu in directories},
    )


def group_cores(folder: CpuFolder) -> tuple[CPUSet, ...]:
    """The cores' online CPUs, ordered by the lowest."""

    def key(cpu: int) -> Hashable:
        files = folder.files.get(cpu)
        if files is None or files.siblings is None:
            return cpu
        return ((files.siblings & folder.online).mask | 1 << cpu, files.core_id)

    return grouped(folder.online, key)


def group_sockets(folder: CpuFolder) -> tuple[Socket, ...]:
    """The sockets' online CPUs, ordered by the lowest."""

    def key(cpu: int) -> Hashable:
        files = folder.files.get(cpu)
        package = _known(files.package_id) if files is not None else None
        if package is not None:
            return package
        if files is not None and files.package_cpus is not None:
            return ((files.package_cpus & folder.online).mask | 1 << cpu, None)
        return (0, None)

    return tuple(
        Socket(id=ident if isinstance(ident, int) else None, cpus=cpus)
        for cpus in grouped(folder.online, key)
        for ident in (key(next(iter(cpus))),)
    )


def die_of(files: CpuFiles) -> int | None:
    """The die's id; kernels on machines without dies write -1."""
    return _known(files.die_id)


def grouped(cpus: Iterable[int], key: Callable[[int], Hashable]) -> tuple[CPUSet, ...]:
    """CPUs with equal keys, ordered by the lowest CPU."""
    masks: dict[Hashable, int] = {}
    for cpu in cpus:
        ident = key(cpu)
        masks[ident] = masks.get(ident, 0) | 1 << cpu
    return tuple(CPUSet.from_mask(mask) for mask in masks.values())


def _known(ident: int | None) -> int | None:
    return ident if ident is not None and ident >= 0 else None


def _cpu_files(reader: Reader, cpu: int, *, online: bool) -> CpuFiles:
    folder = f"{CPU_DIRECTORY}/cpu{cpu}/topology"
    names = reader.tree.names(folder)
    if not names:
        return CpuFiles(cpu)
    package_id = reader.number(f"{folder}/physical_package_id")
    core_id = reader.number(f"{folder}/core_id")
    if not online:
        return CpuFiles(cpu, core_id=core_id, package_id=package_id)
    return CpuFiles(
        cpu,
        core_id=core_id,
        package_id=package_id,
        die_id=reader.number(f"{folder}/die_id") if "die_id" in names else None,
        siblings=_siblings(reader, folder, names, "core_cpus", "thread_siblings"),
        package_cpus=_siblings(reader, folder, names, "package_cpus", "core_siblings")
        if _known(package_id) is None
        else None,
        book_id=reader.text(f"{folder}/book_id") if "book_id" in names else None,
        drawer_id=reader.text(f"{folder}/drawer_id") if "drawer_id" in names else None,
    )


def _siblings(
    reader: Reader, folder: str, names: tuple[str, ...], new: str, old: str
) -> CPUSet | None:
    return reader.cpu_set(
        tuple(f"{folder}/{name}" for name in (new, old) if name in names),
        tuple(f"{folder}/{name}_list" for name in (new, old) if f"{name}_list" in names),
    )
