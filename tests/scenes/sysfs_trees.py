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
