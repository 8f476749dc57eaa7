"""The groups of resctrl, for the audit.

Source: the kernel's ``Documentation/filesystems/resctrl.rst``.
"""

from __future__ import annotations

from typing import Final

from pinfold.adapters.procfs.files import KernelFiles, SnapshotError
from pinfold.core.cache.offers import Group
from pinfold.core.cache.schemata import SchemataError, parse_schemata

_FOLDER: Final = "/sys/fs/resctrl"
_NO_GROUPS: Final = frozenset({"info", "mon_groups", "mon_data"})


def read_caches(files: KernelFiles) -> dict[str, Group] | None:
    """Every group that controls something, by name; None where resctrl is not mounted.

    Raises:
        SnapshotError: a schemata that is none.
    """
    if not files.is_folder(f"{_FOLDER}/info"):
        return None
    found = {}
    for name in ("", *sorted(set(files.folders(_FOLDER)) - _NO_GROUPS)):
        folder = f"{_FOLDER}/{name}" if name else _FOLDER
        cpus, schemata = files.cpus(f"{folder}/cpus_list"), files.text(f"{folder}/schemata")
        if cpus is None or schemata is None:
            continue
        try:
            found[name] = Group(name, cpus, parse_schemata(schemata))
        except SchemataError as error:
            raise SnapshotError(f"{folder}/schemata: {error}") from None
    return found
