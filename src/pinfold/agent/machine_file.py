"""The machine as the agent knew it last: ``machine.json`` in the state directory.

What ``pinfold topology -o json`` prints, so that it can be read as ``--machine`` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from pinfold.adapters.machines.json_document import decode
from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.adapters.statefile.files import StateFileError, read_state_file, write_state_file
from pinfold.agent.reports import report_of_node
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.planning.machine_document import machine_document

FILE: Final = "machine.json"

log = structlog.get_logger("pinfold")


def remembered_machine(folder: Path) -> Machine | None:
    """The machine as it was written; None where there is none that can be read.

    Without it an agent still starts: what it then does not know of a CPU that is offline, it learns
    when the CPU is online at a start.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        document = decode(read_state_file(path), name=str(path))
        return machine_from_own_json(document, file=str(path))
    except (StateFileError, MachineError) as error:
        log.warning("forgotten", problem=str(error))
        return None


def remember_machine(folder: Path, machine: Machine) -> None:
    """Write the machine, where it is not what is there; a failure is reported."""
    path = folder / FILE
    content = msgspec.json.encode(machine_document(machine))
    try:
        if not path.exists() or read_state_file(path) != content:
            write_state_file(path, content)
    except StateFileError as error:
        report_of_node(f"the machine was not written down: {error}")
