"""What gates had before they were used, in a file that outlives the agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import boot_id
from pinfold.ports.errors import PortError

_VERSION: Final = 1


class GateFile:
    """The :class:`pinfold.adapters.cgroup.gates.GateRecord` in a file, which is gone while empty.

    Cgroups do not outlive the machine's start, so it need not outlive more than this process.

    Args:
        path: the file, in a folder that nobody else writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Mapping[Path, CPUSet]:
        """See :class:`pinfold.adapters.cgroup.gates.GateRecord`.

        Raises:
            PortError: it cannot be read, or is damaged.
        """
        try:
            document = json.loads(self._path.read_bytes())
            if document["boot"] != boot_id():
                return {}
            return {Path(gate): CPUSet.parse(cpus) for gate, cpus in document["gates"].items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise PortError(f"{self._path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PortError(
                f"{self._path}: no record of a kubelet's cpusets: {error!r}",
                "write an empty line into cpuset.cpus of the burstable and besteffort cgroups and "
                "of those of Guaranteed pods, and remove the file",
            ) from None

    def save(self, before: Mapping[Path, CPUSet]) -> None:
        """See :class:`pinfold.adapters.cgroup.gates.GateRecord`."""
        gates = {str(gate): str(cpus) for gate, cpus in before.items()}
        document = {"version": _VERSION, "boot": boot_id(), "gates": gates}
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            if not gates:
                self._path.unlink(missing_ok=True)
                return
            new.write_text(json.dumps(document, indent=1) + "\n")
            new.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise PortError(f"{self._path}: {error.strerror}") from None
