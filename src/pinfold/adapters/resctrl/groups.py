"""The groups of resctrl, as folders and files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.resctrl.info import CPUS, cache_domains, read_offer
from pinfold.adapters.resctrl.record import KeptFile
from pinfold.core.cache.offers import Group, Offer, Schemata
from pinfold.core.cache.plan import DEFAULT, PREFIX, Now
from pinfold.core.cache.schemata import SchemataError, format_schemata, merged, parse_schemata
from pinfold.core.cache.steps import Assign, Make, Remove, Step, Write
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.kernel_files import read_value, subfolders, write_value
from pinfold.linux.mounting import knows, mount, unmount
from pinfold.linux.mounts import Mount, mounts
from pinfold.ports.cache_groups import CacheError, NoCacheGroupsError, NoGroupLeftError

FOLDER: Final = Path("/sys/fs/resctrl")
KIND: Final = "resctrl"
NEVER: Final = "never"
_PLAIN: Final = "plain"
_NOT_GROUPS: Final = frozenset({"info", "mon_groups", "mon_data"})
_OK: Final = "ok"


class Mounts(Struct, frozen=True):
    """How resctrl is found, mounted and unmounted; another one for machines that have none."""

    found: Callable[[], Mount | None]
    mount: Callable[[str], None]
    unmount: Callable[[], None]


def _found() -> Mount | None:
    # The root of it: a group alone may be mounted into a container.
    return next((one for one in mounts() if one.kind == KIND and one.root == "/"), None)


def _mount(options: str) -> None:
    if not knows(KIND):
        raise NoCacheGroupsError(
            "this machine has no resctrl",
            "it needs a CPU with RDT or QoS extensions, and a kernel with CONFIG_X86_CPU_RESCTRL",
        )
    try:
        mount(KIND, FOLDER, options)
    except OSError as error:
        remedy = "run as root, and leave out mount options that this machine does not have"
        raise NoCacheGroupsError(
            f"mounting resctrl on {FOLDER} ({options or 'without options'}): {error.strerror}",
            remedy,
        ) from None


KERNEL: Final = Mounts(_found, _mount, lambda: unmount(FOLDER))


class ResctrlGroups:
    """Fulfils :class:`pinfold.ports.cache_groups.CacheGroups`.

    Args:
        record: the file with what is to be put right.
        mount: whether resctrl is mounted where it is not: ``never``, ``plain``, or its options.
        online: the CPUs that are online.
        mounted: how it is found and mounted.
        cpus: the folder of the CPUs in sysfs.
    """

    def __init__(
        self,
        record: Path,
        mount: str,
        online: Callable[[], CPUSet],
        mounted: Mounts = KERNEL,
        cpus: Path = CPUS,
    ) -> None:
        self._record = KeptFile(record)
        self._mount = mount
        self._online = online
        self._mounts = mounted
        self._cpus = cpus
        self._domains: tuple[CPUSet, dict[int, dict[int, CPUSet]]] | None = None

    def read(self) -> tuple[Offer, Now]:
        """See :class:`CacheGroups`."""
        place = self._place()
        folder, kept = place.path, self._record.kept
        if not (folder / "schemata").exists():
            raise NoCacheGroupsError("resctrl only observes here: nothing can be divided")
        default = self._group(folder, DEFAULT)
        mbps = "mba_MBps" in place.options
        offer = read_offer(folder / "info", default.schemata, self._caches(), mbps=mbps)
        names = set(subfolders(folder)) - _NOT_GROUPS
        ours = {name: self._group(folder, name) for name in sorted(names & set(kept.groups))}
        others = tuple(self._group(folder, name) for name in sorted(names - ours.keys()))
        now = Now(default, kept.without_us(default.schemata), ours, others)
        self._tidy(now)
        return offer, now

    def carry_out(self, step: Step) -> None:
        """See :class:`CacheGroups`."""
        folder = self._place().path
        may_be = isinstance(step, Make) or step.group in self._record.kept.groups
        if not may_be and not (step.group == DEFAULT and isinstance(step, Write)):
            raise CacheError(f"{folder / step.group}: no group of ours")
        match step:
            case Assign(name, cpus):
                self._write(folder, folder / name / "cpus_list", str(cpus))
            case Write(name, schemata):
                if name == DEFAULT:
                    self._note(folder, schemata)
                self._write_schemata(folder, name, schemata)
            case Make(name, schemata):
                self._make(folder, name)
                self._write_schemata(folder, name, schemata)
            case Remove(name):
                try:
                    (folder / name).rmdir()
                except FileNotFoundError:
                    pass
                except OSError as error:
                    raise self._refused(folder, folder / name, error, "removing it") from None

    def close(self) -> None:
        """See :class:`CacheGroups`."""
        kept = self._record.kept
        place = self._mounts.found()
        if not kept.mounted or kept.groups or kept.before:
            return
        if place is None or not set(subfolders(place.path)) - _NOT_GROUPS:
            if place is not None:
                try:
                    self._mounts.unmount()
                except OSError as error:
                    raise CacheError(f"{place.point}: unmounting: {error.strerror}") from None
            self._record.keep(replace(kept, mounted=False))

    # -------------------------------------------------------------------------------------- parts

    def _place(self) -> Mount:
        if (place := self._mounts.found()) is not None:
            if not place.writable:
                raise NoCacheGroupsError(f"{place.point} is mounted read-only", "mount it writable")
            return place
        if self._mount == NEVER:
            raise NoCacheGroupsError(
                "resctrl is not mounted", "mount it, or set cache.mount to plain"
            )
        kept = self._record.kept
        # Whatever was there is gone with the mount.
        self._record.keep(replace(kept, groups=(), before={}, written={}, mounted=True))
        self._mounts.mount("" if self._mount == _PLAIN else self._mount)
        if (place := self._mounts.found()) is None:
            raise NoCacheGroupsError(f"{FOLDER}: resctrl was mounted, and is not there")
        return place

    def _caches(self) -> dict[int, dict[int, CPUSet]]:
        online = self._online()
        if self._domains is None or self._domains[0] != online:
            self._domains = online, cache_domains(online, self._cpus)
        return self._domains[1]

    def _group(self, folder: Path, name: str) -> Group:
        place = folder / name if name else folder
        try:
            cpus = CPUSet.parse(read_value(place / "cpus_list"))
            schemata = parse_schemata(read_value(place / "schemata"))
        except OSError as error:
            raise CacheError(f"{place}: {error.strerror or error}") from None
        except (CPUSetError, SchemataError) as error:
            raise CacheError(f"{place}: {error}") from None
        return Group(name, cpus, schemata)

    def _make(self, folder: Path, name: str) -> None:
        if not name.startswith(PREFIX):
            raise CacheError(f"{name}: no name of a group of ours")
        kept = self._record.kept
        if name not in kept.groups:
            self._record.keep(replace(kept, groups=(*kept.groups, name)))
        try:
            (folder / name).mkdir()
        except OSError as error:
            if error.errno == errno.EEXIST:
                # It is not on record, so it is somebody else's.
                self._record.keep(kept)
            raise self._refused(folder, folder / name, error, "making it") from None

    def _note(self, folder: Path, schemata: Schemata) -> None:
        """Have on record what the default group had, and what it may have from now on."""
        kept = self._record.kept
        now = self._group(folder, DEFAULT).schemata
        without = kept.without_us(now)
        before = {
            line: {domain: without[line][domain] for domain in domains if domain in without[line]}
            for line, domains in schemata.items()
            if line in without
        }
        self._record.keep(
            replace(
                kept,
                before=merged(kept.before, before),
                written=merged(kept.written, {line: dict(now[line]) for line in before}),
                next_written=merged(kept.next_written, schemata),
            )
        )

    def _tidy(self, now: Now) -> None:
        """Have nothing on record that is not to be put right any more."""
        kept = self._record.kept
        if not now.ours and now.before == now.default.schemata:
            kept = replace(kept, before={}, written={}, next_written={})
        self._record.keep(replace(kept, groups=tuple(now.ours)))

    def _write_schemata(self, folder: Path, name: str, schemata: Schemata) -> None:
        text = format_schemata(schemata)
        if text:
            self._write(folder, (folder / name if name else folder) / "schemata", text.rstrip("\n"))

    def _write(self, folder: Path, path: Path, text: str) -> None:
        try:
            write_value(path, text)
        except OSError as error:
            raise self._refused(folder, path, error, f"writing {text!r}") from None

    def _refused(self, folder: Path, path: Path, error: OSError, doing: str) -> CacheError:
        """What the kernel says of it, which is more than the number of the error."""
        said = ""
        with suppress(OSError):
            said = read_value(folder / "info/last_cmd_status")
        why = error.strerror or str(error)
        problem = f"{path}: {doing}: {why}{f' ({said})' if said not in ('', _OK) else ''}"
        if error.errno in (errno.ENOSPC, errno.EBUSY):
            return NoGroupLeftError(problem, "other tools may have groups, or ids are still in use")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return CacheError(problem, "run as root")
        return CacheError(problem)
