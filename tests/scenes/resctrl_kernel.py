"""resctrl as the kernel answers it, for machines that have none.

It answers what ``fs/resctrl`` does with control files: ``mkdir`` and ``rmdir`` of groups, the texts
of ``schemata``, the CPUs of groups, the modes, and why something was refused (``last_cmd_status``).
What is not here: tasks, monitoring groups, pseudo-locking, and any effect on a cache.
Source: the kernel's ``Documentation/filesystems/resctrl.rst``, ``fs/resctrl/rdtgroup.c`` and
``ctrlmondata.c``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from msgspec import Struct, field

from pinfold.core.values.cpuset import CPUSet, CPUSetError

ROOT: Final = ""
_FILES: Final = ("cpus", "cpus_list", "mode", "schemata", "tasks")


class Resource(Struct):
    """A resource with its own line in a schemata; ``most`` is every way, or the whole amount."""

    name: str
    most: int
    closids: int = 8
    min_bits: int = 1
    shareable: int = 0
    sparse: bool = False
    min_bandwidth: int = 10
    granularity: int = 10
    linear: bool = True

    @property
    def is_cache(self) -> bool:
        """Whether it has masks."""
        return self.name.startswith("L")

    @property
    def peer(self) -> str:
        """The line of the other half of the same ways, where code and data are apart."""
        if self.name.endswith("CODE"):
            return self.name.removesuffix("CODE") + "DATA"
        return self.name.removesuffix("DATA") + "CODE" if self.name.endswith("DATA") else ""

    def info(self) -> dict[str, str]:
        """The files below ``info/NAME``."""
        if self.is_cache:
            return {
                "num_closids": f"{self.closids}\n",
                "cbm_mask": f"{self.most:x}\n",
                "min_cbm_bits": f"{self.min_bits}\n",
                "shareable_bits": f"{self.shareable:x}\n",
                "sparse_masks": f"{int(self.sparse)}\n",
                "bit_usage": "",
            }
        return {
            "num_closids": f"{self.closids}\n",
            "min_bandwidth": f"{self.min_bandwidth}\n",
            "bandwidth_gran": f"{self.granularity}\n",
            "delay_linear": f"{int(self.linear)}\n",
        }


class KernelGroup(Struct):
    """A group: its id, CPUs and mode, and by line and domain what it has."""

    closid: int
    cpus: CPUSet
    values: dict[str, dict[int, int]] = field(default_factory=dict)
    mode: str = "shareable"


class ResctrlKernel:
    """The state of the kernel, and its answers; ``calls`` is called before each that changes."""

    def __init__(
        self, resources: Sequence[Resource], domains: dict[int, CPUSet], *, monitors: bool = False
    ) -> None:
        self.resources = {resource.name: resource for resource in resources}
        self.domains = domains
        self.online = CPUSet.union_of(domains.values())
        self.monitors = monitors
        self.status = "ok\n"
        full = {r.name: dict.fromkeys(domains, r.most) for r in resources}
        self.groups = {ROOT: KernelGroup(0, self.online, full)}
        self.calls: Callable[[str, str], None] = lambda _what, _text: None

    # ----------------------------------------------------------------------- what others would do

    def set_online(self, cpus: CPUSet) -> None:
        """CPUs go offline, and are no group's; those that come are the default group's."""
        for group in self.groups.values():
            group.cpus &= cpus
        self.groups[ROOT].cpus |= cpus - self.online
        self.online = cpus

    # ------------------------------------------------------------------------------ a file system

    def is_folder(self, path: str) -> bool:
        """See :class:`tests.scenes.fuse_folder.Files`."""
        above, _, name = path.rpartition("/")
        if path and name not in self.names(above):
            raise FileNotFoundError(errno.ENOENT, path)
        if above == "info":
            return name != "last_cmd_status"
        return path in self.groups or name in ("info", "mon_groups", "mon_data")

    def names(self, path: str) -> Sequence[str]:
        """See :class:`tests.scenes.fuse_folder.Files`."""
        folders = ["mon_groups", "mon_data"] if self.monitors else []
        if path == ROOT:
            return ["info", *_FILES, *folders, *(name for name in self.groups if name)]
        if path in self.groups:
            return [*_FILES, *folders]
        if path == "info":
            return ["last_cmd_status", *self.resources, *(["L3_MON"] if self.monitors else [])]
        if path == "info/L3_MON":
            return ["num_rmids", "mon_features"]
        name = path.removeprefix("info/")
        return list(self.resources[name].info()) if name in self.resources else []

    def read(self, path: str) -> str:
        """See :class:`tests.scenes.fuse_folder.Files`."""
        folder, _, name = path.rpartition("/")
        if path == "info/last_cmd_status":
            return self.status
        if folder == "info/L3_MON":
            return {"num_rmids": "32\n", "mon_features": "llc_occupancy\n"}[name]
        if folder.startswith("info/"):
            return self.resources[folder.removeprefix("info/")].info()[name]
        group = self.groups[folder]
        match name:
            case "cpus":
                return f"{group.cpus.hex()}\n"
            case "cpus_list":
                return f"{group.cpus}\n"
            case "mode":
                return f"{group.mode}\n"
            case "schemata":
                return self._schemata(group)
        return ""

    def write(self, path: str, text: str) -> None:
        """See :class:`tests.scenes.fuse_folder.Files`."""
        self.calls(path, text)
        folder, _, name = path.rpartition("/")
        group = self.groups.get(folder)
        if group is None or name not in _FILES:
            raise PermissionError(errno.EACCES, path)
        self.status = "ok\n"
        match name:
            case "schemata":
                self._write_schemata(group, text)
            case "cpus_list":
                self._write_cpus(folder, text)
            case "mode":
                group.mode = text.strip()
            case _:
                raise NotImplementedError(path)

    def make(self, path: str) -> None:
        """See :class:`tests.scenes.fuse_folder.Files`."""
        self.calls(path, "mkdir")
        if "/" in path:
            raise PermissionError(errno.EPERM, path)
        if path in self.names(ROOT):
            raise FileExistsError(errno.EEXIST, path)
        self.status = "ok\n"
        used = {group.closid for group in self.groups.values()}
        there = min(resource.closids for resource in self.resources.values())
        free = [closid for closid in range(there) if closid not in used]
        if not free:
            self._refuse(errno.ENOSPC, "Out of CLOSIDs")
        values = {
            resource.name: {domain: self._initial(resource, domain) for domain in self.domains}
            for resource in self.resources.values()
        }
        self.groups[path] = KernelGroup(free[0], CPUSet(), values)

    def remove(self, path: str) -> None:
        """See :class:`tests.scenes.fuse_folder.Files`."""
        self.calls(path, "rmdir")
        if path not in self.groups or path == ROOT:
            raise PermissionError(errno.EPERM, path)
        self.groups[ROOT].cpus |= self.groups.pop(path).cpus

    # -------------------------------------------------------------------------------------- parts

    def _refuse(self, number: int, why: str) -> NoReturn:
        self.status = f"{why}\n"
        raise OSError(number, why)

    def _initial(self, resource: Resource, domain: int) -> int:
        """What a new group has: all that is no exclusive group's, in one piece where need be."""
        if not resource.is_cache:
            return resource.most
        free = resource.most
        for group in self.groups.values():
            if group.mode == "exclusive":
                for name in filter(None, (resource.name, resource.peer)):
                    free &= ~group.values[name][domain]
        if free and not resource.sparse:
            lowest = free & -free
            free &= ~(free + lowest)
        if free.bit_count() < resource.min_bits or not free:
            self._refuse(errno.ENOSPC, f"No space on {resource.name}:{domain}")
        return free

    def _schemata(self, group: KernelGroup) -> str:
        width = max(map(len, self.resources))
        lines = []
        for name, resource in self.resources.items():
            if group.mode == "pseudo-locksetup":
                lines.append(f"{name}:uninitialized\n")
                continue
            form = f"{{}}={{:0{len(f'{resource.most:x}')}x}}" if resource.is_cache else "{}={:4d}"
            values = ";".join(form.format(*one) for one in group.values[name].items())
            lines.append(f"{name:>{width}}:{values}\n")
        return "".join(lines)

    def _write_schemata(self, group: KernelGroup, text: str) -> None:
        if not text.endswith("\n"):
            raise OSError(errno.EINVAL, "no newline")
        staged: dict[str, dict[int, int]] = {}
        for line in text[:-1].split("\n"):
            name, colon, values = line.partition(":")
            name = name.strip()
            if not colon:
                self._refuse(errno.EINVAL, "Missing ':'")
            if not values:
                self._refuse(errno.EINVAL, f"Missing '{name}' value")
            if name not in self.resources:
                self._refuse(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
            for part in filter(None, values.split(";")):
                domain, equals, value = part.partition("=")
                if not equals or not domain.strip().isdigit():
                    self._refuse(errno.EINVAL, "Missing '=' or non-numeric domain")
                if int(domain) not in self.domains:
                    raise OSError(errno.EINVAL, "no such domain")
                if int(domain) in staged.setdefault(name, {}):
                    self._refuse(errno.EINVAL, f"Duplicate domain {domain}")
                staged[name][int(domain)] = self._value(
                    self.resources[name], group, int(domain), value.strip()
                )
        for name, values_of in staged.items():
            group.values[name] |= values_of

    def _value(self, resource: Resource, group: KernelGroup, domain: int, text: str) -> int:
        if not resource.is_cache:
            if not text.isdigit():
                self._refuse(errno.EINVAL, f"Invalid MB value {text}")
            amount = int(text)
            if not resource.min_bandwidth <= amount <= resource.most:
                bounds = f"[{resource.min_bandwidth},{resource.most}]"
                self._refuse(errno.EINVAL, f"MB value {amount} out of range {bounds}")
            return -(-amount // resource.granularity) * resource.granularity
        try:
            mask = int(text, 16)
        except ValueError:
            self._refuse(errno.EINVAL, f"Non-hex character in the mask {text}")
        if not mask or mask & ~resource.most:
            self._refuse(errno.EINVAL, "Mask out of range")
        lowest = mask & -mask
        first = mask & ~(mask + lowest)
        if not resource.sparse and first != mask:
            self._refuse(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if first.bit_count() < resource.min_bits:
            self._refuse(errno.EINVAL, f"Need at least {resource.min_bits} bits in the mask")
        for other in self.groups.values():
            if other is not group and "exclusive" in (other.mode, group.mode):
                for name in filter(None, (resource.name, resource.peer)):
                    if other.values[name][domain] & mask:
                        whose = "exclusive" if other.mode == "exclusive" else "other"
                        self._refuse(errno.EINVAL, f"Overlaps with {whose} group")
        return mask

    def _write_cpus(self, folder: str, text: str) -> None:
        try:
            cpus = CPUSet.parse(text)
        except CPUSetError:
            self._refuse(errno.EINVAL, "Bad CPU list/mask")
        if cpus - self.online:
            self._refuse(errno.EINVAL, "Can only assign online CPUs")
        group, default = self.groups[folder], self.groups[ROOT]
        dropped = group.cpus - cpus
        if dropped and folder == ROOT:
            self._refuse(errno.EINVAL, "Can't drop CPUs from default group")
        default.cpus |= dropped
        for other in self.groups.values():
            if other is not group:
                other.cpus -= cpus
        group.cpus = cpus
