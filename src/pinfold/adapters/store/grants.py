"""Rows of what containers have beside CPUs: the memory manager's blocks, the plugins' devices."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from pinfold.adapters.store.schema import REMEDY
from pinfold.core.memory.memory import Block
from pinfold.core.topology_manager.hints import MAX_NUMA_ID
from pinfold.ports.errors import StoreError
from pinfold.ports.records import DeviceGrant, PodRecord

_LARGEST: Final = (1 << 63) - 1
"""The largest number that a column holds."""


def read_memory(database: sqlite3.Connection, file: str) -> dict[int, dict[str, tuple[Block, ...]]]:
    """Blocks by the pod's number and container.

    Raises:
        StoreError: a value that cannot be; the message names table and row.
        sqlite3.Error: the file cannot be read.
    """
    found: dict[int, dict[str, tuple[Block, ...]]] = {}
    for number, container, kind, nodes, size in database.execute(
        "SELECT pod, container, type, numa_nodes, size FROM memory "
        "ORDER BY pod, container, position"
    ):
        place = f"{file}: table memory, pod {number}, container {container!r}"
        block = Block(_numa_nodes(nodes, place), kind, size)
        of_pod = found.setdefault(number, {})
        of_pod[container] = (*of_pod.get(container, ()), block)
    return found


def read_bubble_memory(database: sqlite3.Connection, file: str) -> dict[int, tuple[Block, ...]]:
    """The blocks of bubbles, by the pod's number.

    Raises:
        StoreError: a value that cannot be; the message names table and row.
        sqlite3.Error: the file cannot be read.
    """
    found: dict[int, tuple[Block, ...]] = {}
    for number, kind, nodes, size in database.execute(
        "SELECT pod, type, numa_nodes, size FROM bubble_memory ORDER BY pod, position"
    ):
        place = f"{file}: table bubble_memory, pod {number}"
        block = Block(_numa_nodes(nodes, place), kind, size)
        found[number] = (*found.get(number, ()), block)
    return found


def read_devices(
    database: sqlite3.Connection, file: str
) -> dict[int, dict[str, dict[str, DeviceGrant]]]:
    """Devices by the pod's number, container and resource.

    Raises:
        StoreError: a value that cannot be; the message names table and row.
        sqlite3.Error: the file cannot be read.
    """
    found: dict[int, dict[str, dict[str, DeviceGrant]]] = {}
    for number, container, resource, ids, response in database.execute(
        "SELECT pod, container, resource, ids, response FROM devices"
    ):
        place = f"{file}: table devices, pod {number}, container {container!r}, {resource!r}"
        grant = DeviceGrant(_device_ids(ids, place), response)
        found.setdefault(number, {}).setdefault(container, {})[resource] = grant
    return found


def write_grants(database: sqlite3.Connection, number: int, pod: PodRecord) -> None:
    """Put a pod's rows in place of those that it has.

    Raises:
        ValueError: a value that the record does not take.
        sqlite3.Error: it cannot be written.
    """
    database.execute("DELETE FROM memory WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO memory VALUES (?, ?, ?, ?, ?, ?)",
        [
            (number, container, position, block.type, _nodes_text(block), _size(block))
            for container, blocks in pod.memory.items()
            for position, block in enumerate(blocks)
        ],
    )
    database.execute("DELETE FROM bubble_memory WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO bubble_memory VALUES (?, ?, ?, ?, ?)",
        [
            (number, position, block.type, _nodes_text(block), _size(block))
            for position, block in enumerate(pod.bubble_memory)
        ],
    )
    database.execute("DELETE FROM devices WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO devices VALUES (?, ?, ?, ?, ?)",
        [
            (number, container, resource, _ids_text(grant), grant.response)
            for container, grants in pod.devices.items()
            for resource, grant in grants.items()
        ],
    )


def _numa_nodes(text: str, place: str) -> tuple[int, ...]:
    nodes = _list(text)
    if not nodes or not all(map(_is_numa_node, nodes)):
        raise StoreError(f"{place}: numa_nodes is {text}, not a list of NUMA node ids", REMEDY)
    return tuple(nodes)


def _list(text: str) -> list[Any]:
    """What a JSON list holds; nothing where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _is_numa_node(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_NUMA_ID


def _nodes_text(block: Block) -> str:
    nodes = list(block.numa_affinity or ())
    if not nodes or not all(map(_is_numa_node, nodes)):
        raise ValueError(f"a block of {block.type} on NUMA nodes {nodes}")
    return json.dumps(nodes)


def _size(block: Block) -> int:
    if not 0 <= block.size <= _LARGEST:
        raise ValueError(f"a block of {block.type} of {block.size} bytes")
    return block.size


def _device_ids(text: str, place: str) -> tuple[str, ...]:
    ids = _list(text)
    if not ids or not all(isinstance(one, str) for one in ids):
        raise StoreError(f"{place}: ids is {text}, not a list of device ids", REMEDY)
    return tuple(ids)


def _ids_text(grant: DeviceGrant) -> str:
    if not grant.ids:
        raise ValueError("a container with no devices of a resource that it has")
    # Escaped, so that an id that is no UTF-8 does not stop the pod's whole record.
    return json.dumps(list(grant.ids))
