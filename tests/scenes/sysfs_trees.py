"""Small ``/sys`` trees for tests, and the captured machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pinfold.adapters.machines.archive import ArchiveTree
from pinfold.adapters.machines.discovery import read_tree
from pinfold.core.machine.machine import Machine
from tests.roots import DATA, SHARED

SAMPLES = DATA / "machines"
MACHINES = SHARED / "machines"

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def captures() -> list[Path]:
    """The committed captures, and the others where they are."""
    samples = sorted(SAMPLES.glob("*.tar.xz"))
    known = {path.name for path in samples}
    return samples + [path for path in sorted(MACHINES.glob("*.tar.xz")) if path.name not in known]


def capture_name(path: Path) -> str:
    return path.name.removesuffix(".tar.xz")


@cache
def truth(path: Path) -> dict[str, Any]:
    """The truth beside a capture."""
    loaded: dict[str, Any] = json.loads(
        path.with_name(f"{capture_name(path)}.json").read_text(encoding="utf-8")
    )
    return loaded


def memory_tree(
    files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None
) -> ArchiveTree:
    """A tree of files by path; a path that ends with a slash is an empty directory."""
    contents: dict[str, bytes] = {}
    directories: dict[str, set[str]] = {"": set()}
    for path, text in files.items():
        if path.endswith("/"):
            directories.setdefault(path.rstrip("/"), set())
        else:
            contents[path] = text if isinstance(text, bytes) else text.encode()
    for raw in [*files, *(links or {})]:
        path = raw.rstrip("/")
        while path:
            parent, _, last = path.rpartition("/")
            directories.setdefault(parent, set()).add(last)
            path = parent
    return ArchiveTree("test", contents, dict(links or {}), directories)


def machine(files: Mapping[str, str | bytes], links: Mapping[str, str] | None = None) -> Machine:
    """The machine of such a tree."""
    return read_tree(memory_tree(files, links))


def cpu_files(
    cpu: int, *, core: int = 0, package: int = 0, siblings: str = "", **topology: str
) -> dict[str, str]:
    """The topology folder of one CPU."""
    folder = f"{CPU}/cpu{cpu}/topology"
    files = {
        f"{folder}/core_id": f"{core}\n",
        f"{folder}/physical_package_id": f"{package}\n",
    }
    if siblings:
        files[f"{folder}/core_cpus"] = f"{siblings}\n"
    return files | {f"{folder}/{name}": f"{text}\n" for name, text in topology.items()}


def cache_files(cpu: int, index: int, **values: str) -> dict[str, str]:
    """One cache folder: complete, of level 3, but for what is given; "-" leaves a file out."""
    folder = f"{CPU}/cpu{cpu}/cache/index{index}"
    files = {
        "id": "0",
        "size": "32768K",
        "level": "3",
        "type": "Unified",
        "shared_cpu_map": f"{1 << cpu:x}",
    } | values
    return {f"{folder}/{name}": f"{text}\n" for name, text in files.items() if text != "-"}


def node_files(node: int, cpumap: str, *, distance: str = "", memory_kb: int = 0) -> dict[str, str]:
    """One node folder."""
    folder = f"{NODE}/node{node}"
    files = {f"{folder}/cpumap": f"{cpumap}\n"}
    if distance:
        files[f"{folder}/distance"] = f"{distance}\n"
    if memory_kb:
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       {memory_kb} kB\n"
    return files


def plain(cpus: int, *, online: str | None = None) -> dict[str, str]:
    """A machine of ``cpus`` single-threaded cores in one socket and one node."""
    files = {f"{CPU}/present": f"0-{cpus - 1}\n", f"{CPU}/online": f"{online or f'0-{cpus - 1}'}\n"}
    for cpu in range(cpus):
        files |= cpu_files(cpu, core=cpu, siblings=f"{1 << cpu:x}")
    return files | node_files(0, f"{(1 << cpus) - 1:x}")


PCI = "sys/bus/pci/devices"


def function(address: str, device_class: str, node: int, cpus: str) -> dict[str, str]:
    """The files of a function; ``cpus`` is a mask."""
    return {
        f"{PCI}/{address}/class": f"{device_class}\n",
        f"{PCI}/{address}/numa_node": f"{node}\n",
        f"{PCI}/{address}/local_cpus": f"{cpus}\n",
    }


def server() -> tuple[dict[str, str], dict[str, str]]:
    """Files and links of two nodes with two CPUs each, and one of everything that has a name."""
    files = plain(4) | node_files(0, "3", distance="10 21") | node_files(1, "c", distance="21 10")
    files |= function("0000:17:00.0", "0x020000", 0, "3")
    files |= function("0000:17:00.1", "0x020000", 0, "3")
    files |= function("0000:b1:00.0", "0x020000", 1, "c")
    files |= function("0000:b1:02.0", "0x020000", 1, "c")
    files |= function("0000:b2:00.0", "0x010802", 1, "c")
    files |= function("0000:18:00.0", "0x010802", 0, "3")
    files |= function("0000:3a:00.0", "0x030200", 0, "3")
    files |= function("0000:00:14.0", "0x0c0330", -1, "f")
    files |= function("0000:00:1f.0", "0x060100", -1, "f")
    links = {
        "sys/class/net/eth0": "../../devices/pci0000:16/0000:16:02.0/0000:17:00.0/net/eth0",
        "sys/class/net/eth1": "../../devices/pci0000:16/0000:16:02.0/0000:17:00.1/net/eth1",
        "sys/class/net/eth2": "../../devices/pci0000:b0/0000:b1:00.0/net/eth2",
        "sys/class/net/vf0": "../../devices/pci0000:b0/0000:b1:02.0/virtio7/net/vf0",
        "sys/class/net/enx001122334455": "../../devices/pci0000:00/0000:00:14.0/usb1/net/enx",
        "sys/class/net/bond0": "../../devices/virtual/net/bond0",
        "sys/devices/virtual/net/bond0/lower_eth0": "../../../../class/net/eth0",
        "sys/devices/virtual/net/bond0/lower_eth2": "../../../../class/net/eth2",
        "sys/class/net/bond0.7": "../../devices/virtual/net/bond0.7",
        "sys/devices/virtual/net/bond0.7/lower_bond0": "../bond0",
        "sys/class/net/lo": "../../devices/virtual/net/lo",
        "sys/class/infiniband/mlx5_0": "../../devices/pci0000:b0/0000:b1:00.0/infiniband/mlx5_0",
        "sys/class/nvme/nvme0": "../../devices/pci0000:b0/0000:b2:00.0/nvme/nvme0",
        "sys/class/nvme/nvme1": "../../devices/pci0000:16/0000:18:00.0/nvme/nvme1",
        "sys/block/nvme1n1": "../devices/pci0000:16/0000:18:00.0/nvme/nvme1/nvme1n1",
        # Native multipath: the disk belongs to the subsystem, its paths to the controllers.
        "sys/block/nvme0n1": "../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
        "sys/block/nvme0c0n1": "../devices/pci0000:b0/0000:b2:00.0/nvme/nvme0/nvme0c0n1",
        "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0": "../../../../class/nvme/nvme0",
        "sys/block/md0": "../devices/virtual/block/md0",
        "sys/devices/virtual/block/md0/slaves/nvme0n1": "../../../../../block/nvme0n1",
        "sys/devices/virtual/block/md0/slaves/nvme1n1": "../../../../../block/nvme1n1",
        "sys/class/drm/card0": "../../devices/pci0000:16/0000:3a:00.0/drm/card0",
        "sys/class/drm/card0-DP-1": "../../devices/pci0000:16/0000:3a:00.0/drm/card0/card0-DP-1",
        f"{PCI}/0000:b1:02.0/physfn": "../0000:b1:00.0",
    }
    return files, links
