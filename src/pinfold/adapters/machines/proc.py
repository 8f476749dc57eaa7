"""What ``/proc`` says: architecture, processor model, sockets, the cpuset of the reader."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pinfold.adapters.machines.reader import Reader
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import parse_cgroups

# hwloc's side file for what a program asks the kernel instead of reading it.
NOFILE_INFO: Final = "proc/hwloc-nofile-info"

_ARCHITECTURE: Final = re.compile(r"^Architecture:[ \t]*(\S+)", re.MULTILINE)
_FIELD: Final = re.compile(r"^([^:\n]*?)[ \t]*:[ ]?(.*)$", re.MULTILINE)
# cAdvisor counts these lines (machine.go, "physical id").
_PHYSICAL_ID: Final = re.compile(r"^physical id\s*:\s*([0-9]+)$", re.MULTILINE | re.ASCII)

_MODEL_FIELDS: Final = ("model name", "Model Name", "Processor", "cpu")
_FIRST_HYBRID_AMD_FAMILY: Final = 0x1A


class CpuInfo:
    """The fields of ``/proc/cpuinfo`` that are needed; the first processor's value of each."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fields: dict[str, str] = {}
        end = text.find("\n\n")
        # One processor's paragraph tells enough; machines have up to thousands of them.
        for name, value in _FIELD.findall(text[: max(end, 4096)] if end >= 0 else text[:65536]):
            self._fields.setdefault(name, value.rstrip("\r"))

    def get(self, name: str) -> str:
        """The value of a field, "" without it."""
        return self._fields.get(name, "")

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of the first processor."""
        return self._fields

    @property
    def model(self) -> str | None:
        """The model as the kernel writes it, with the blanks that some processors end it with."""
        models = (self.get(name).lstrip() for name in _MODEL_FIELDS)
        return next((model for model in models if model), None)

    @property
    def physical_ids(self) -> int:
        """Distinct ``physical id`` lines."""
        return len(set(_PHYSICAL_ID.findall(self._text)))

    @property
    def architecture(self) -> str | None:
        """The machine's name for itself, by the fields that only it has."""
        if "flags" in self._fields and "vendor_id" in self._fields:
            # Kernels of 32 bits on processors of 64 show "lm", too, but also the i386's bugs.
            wide = "lm" in self.get("flags").split() and "fdiv_bug" not in self._fields
            return "x86_64" if wide else "i386"
        if self.get("arch") == "IA-64" or self.get("family") == "IA-64":
            return "ia64"
        if self.get("vendor_id") == "IBM/S390":
            return "s390x"
        if self.get("CPU implementer"):
            return "aarch64" if self.get("CPU architecture") == "8" else "arm"
        if self.get("cpu").startswith("POWER"):
            return "ppc64"
        return None

    @property
    def knights_landing(self) -> bool:
        """A Xeon Phi x200 or its successor: memory on the package beside the DDR."""
        return (
            self.get("vendor_id") == "GenuineIntel"
            and self.get("cpu family") == "6"
            and self.get("model") in ("87", "133")
        )

    @property
    def never_hybrid(self) -> bool:
        """AMD before Zen 5: cores differ in their turbo only, and asking for it is slow."""
        family = self.get("cpu family")
        return (
            self.get("vendor_id") == "AuthenticAMD"
            and family.isdecimal()
            and int(family[:4]) < _FIRST_HYBRID_AMD_FAMILY
        )


def read_architecture(reader: Reader, cpuinfo: CpuInfo) -> str | None:
    """The architecture as ``uname -m`` has it; from the capture's side file, or guessed."""
    if reader.tree.live:
        return os.uname().machine
    match = _ARCHITECTURE.search(reader.text(NOFILE_INFO) or "")
    return match[1] if match else cpuinfo.architecture


def read_allowed(reader: Reader, online: CPUSet) -> CPUSet:
    """The online CPUs in the cpuset of the process that read or captured the tree.

    Raises:
        MachineError: the cpuset's file is no CPU list.
    """
    for line in (reader.tree.read("proc/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point, kind, options = fields[1].strip("/"), fields[2], fields[3].split(",")
        if kind == "cgroup2":
            controllers = reader.text(f"{point}/cgroup.controllers") or ""
            if "cpuset" in controllers.split():
                return _cpuset(reader, point, _group(reader, ""), "cpuset.cpus.effective", online)
        elif kind == "cpuset" or (kind == "cgroup" and "cpuset" in options):
            plain = kind == "cpuset" or "noprefix" in options
            file = "cpus" if plain else "cpuset.cpus"
            return _cpuset(reader, point, _group(reader, "cpuset"), file, online)
    return online


def _cpuset(reader: Reader, point: str, group: str, file: str, online: CPUSet) -> CPUSet:
    parts = [part for part in group.split("/") if part not in ("", ".", "..")]
    cpus = reader.cpu_list("/".join([point, *parts, file]))
    return (cpus & online) or online if cpus is not None else online


def _group(reader: Reader, controller: str) -> str:
    groups = parse_cgroups(reader.tree.read("proc/self/cgroup") or "")
    return groups.get(controller) or reader.text("proc/self/cpuset") or ""
