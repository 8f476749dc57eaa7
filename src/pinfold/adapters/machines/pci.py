"""PCI functions, and the names that the kernel gives to what they drive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from pinfold.adapters.machines.reader import Reader
from pinfold.adapters.machines.tree import Tree
from pinfold.core.machine.machine import PCIFunction

PCI_DIRECTORY: Final = "sys/bus/pci/devices"
PHYSICAL_FUNCTION: Final = "physfn"

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
# Base classes: storage, network, display, processing accelerator; and co-processors.
_CLASSES: Final = ("0x01", "0x02", "0x03", "0x12", "0x0b40")

NAMED: Final = {
    "sys/class/net": re.compile(r"[\w.\-@:]{1,15}", re.ASCII),
    "sys/block": re.compile(r"(?!nvme\d+c\d+n)[\w.\-!]{1,64}", re.ASCII),
    "sys/class/infiniband": re.compile(r"[\w.\-]{1,64}", re.ASCII),
    "sys/class/nvme": re.compile(r"nvme\d{1,6}", re.ASCII),
    "sys/class/drm": re.compile(r"(?:card|renderD)\d{1,6}", re.ASCII),
    "sys/class/accel": re.compile(r"accel\d{1,6}", re.ASCII),
}
"""Folders of links to devices, and the names that are taken of each.

The paths of a multipath NVMe disk (``nvme0c0n1``) are nothing that anybody opens.
"""

LOWER: Final = "lower_"
SLAVES: Final = "slaves"
_CONTROLLER: Final = re.compile(r"nvme\d+", re.ASCII)
_MAX_STACK: Final = 64
"""Virtual devices that one name may lead through: a bridge, its bonds, their VLANs."""


class NamedDevice(Struct, frozen=True):
    """A name in one of the folders of :data:`NAMED`, and the functions that it leads to.

    ``stacked`` marks what is made of other devices: a bond, a VLAN, an array.
    """

    folder: str
    name: str
    functions: tuple[str, ...]
    stacked: bool


def read_pci(reader: Reader) -> tuple[PCIFunction, ...]:
    """Storage, network, display and accelerator functions, and others with names, by address.

    Raises:
        MachineError: a file is not what it should be.
    """
    names: dict[str, dict[str, None]] = {}
    # The function's own names first, then those of what is stacked on it.
    for device in sorted(named_devices(reader.tree), key=lambda device: device.stacked):
        for address in device.functions:
            names.setdefault(address, {})[device.name] = None
    found = []
    for address in reader.tree.names(PCI_DIRECTORY):
        match = _ADDRESS.fullmatch(address)
        folder = f"{PCI_DIRECTORY}/{address}"
        device_class = reader.text(f"{folder}/class") if match else None
        if match is None or device_class is None:
            continue
        if not device_class.startswith(_CLASSES) and address not in names:
            continue
        if re.fullmatch(r"0x[0-9a-f]{6}", device_class) is None:
            raise reader.error(f"{folder}/class", f"{device_class[:40]!r} is no PCI class")
        node = reader.number(f"{folder}/numa_node")
        function = PCIFunction(
            address=address,
            device_class=device_class,
            numa_node=-1 if node is None else node,
            local_cpus=reader.cpu_set((f"{folder}/local_cpus",), (f"{folder}/local_cpulist",)),
            names=tuple(names.get(address, ())),
            physical_function=last_function(
                reader.tree.real_path(f"{folder}/{PHYSICAL_FUNCTION}"), behind=address
            ),
        )
        found.append((tuple(int(part, 16) for part in match.groups()), function))
    return tuple(function for _, function in sorted(found, key=lambda pair: pair[0]))


def named_devices(tree: Tree) -> Iterator[NamedDevice]:
    """The names that lead to PCI functions, in the order of :data:`NAMED`."""
    for folder, pattern in NAMED.items():
        for name in tree.names(folder):
            if pattern.fullmatch(name):
                path = f"{folder}/{name}"
                functions = _functions_of(tree, path)
                if functions:
                    stacked = last_function(tree.real_path(path)) is None
                    yield NamedDevice(folder, name, functions, stacked)


def last_function(path: str, *, behind: str | None = None) -> str | None:
    """The PCI function in a path of ``sys/devices`` that is nearest to the device.

    Virtio, NVMe and SCSI have folders of their own between the function and the device.
    """
    for part in reversed(path.split("/")):
        if _ADDRESS.fullmatch(part):
            return None if part == behind else part
    return None


def _functions_of(tree: Tree, path: str) -> tuple[str, ...]:
    """The function of a device, or those of what it is stacked on."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    todo = [path]
    while todo and len(seen) < _MAX_STACK:
        here = todo.pop(0)
        real = tree.real_path(here)
        if real in seen:
            continue
        function = last_function(real)
        if function is not None:
            found[function] = None
        else:
            seen.add(real)
            todo += _stacked_on(tree, here, real)
    return tuple(found)


def _stacked_on(tree: Tree, path: str, real: str) -> Iterable[str]:
    """What a virtual device is made of: a bond's links, the disks of an array, NVMe's paths."""
    below = [f"{path}/{name}" for name in tree.names(path) if name.startswith(LOWER)]
    below += [f"{path}/{SLAVES}/{name}" for name in tree.names(f"{path}/{SLAVES}")]
    parent = real.rpartition("/")[0]
    if "/nvme-subsystem/" in parent:
        below += [f"{parent}/{n}" for n in tree.names(parent) if _CONTROLLER.fullmatch(n)]
    return below
