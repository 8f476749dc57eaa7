"""A machine as far as a NodeResourceTopology tells it: NUMA nodes with their CPUs and distances.

Source: the published kind (``topology.node.k8s.io/v1alpha2``).  Which CPUs are threads of one core,
which sockets and caches there are and what the CPUs are called is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.ports.kubernetes import KubernetesError

SOURCE: Final = "NodeResourceTopology"
NOT_TOLD: Final = (
    "a NodeResourceTopology tells NUMA nodes, how many CPUs each has, and distances: planned as if "
    "each CPU were a core of its own, each NUMA node a socket with one cache, and CPUs numbered by "
    "NUMA node; what depends on threads, sockets or caches may be otherwise on the node"
)
"""What to say of a plan on such a machine."""

_NODE: Final = "Node"
_PREFIX: Final = "node-"
_MOST: Final = 1 << 12


def topology_machine(found: Mapping[str, Any], *, name: str) -> bytes:
    """The zones of a NodeResourceTopology as a machine's document; ``name`` is the node's.

    Raises:
        KubernetesError: it names no CPUs by NUMA node, which it does not under policy none, or a
            zone is none.
    """
    where = f"{SOURCE} {name}"
    zones = {_number(zone, where): zone for zone in _nodes(found, where)}
    counts = {number: _cpus(zones[number], where) for number in sorted(zones)}
    if not sum(counts.values()):
        raise KubernetesError(
            f"{where}: names no CPUs by NUMA node (under CPU manager policy none there are none); "
            "give the machine with --node NAME=MACHINE"
        )
    if sum(counts.values()) > _MOST:
        raise KubernetesError(f"{where}: more than {_MOST} CPUs")
    first, cpus, numa, sockets, caches = 0, [], [], [], []
    for number, count in counts.items():
        mine = range(first, first + count)
        listed = f"{first}-{first + count - 1}" if count else ""
        numa.append({"id": number, "cpus": listed, "memory_bytes": _memory(zones[number], where)})
        if count:
            sockets.append({"id": number, "cpus": listed})
            caches.append({"cpus": listed})
        cpus += [_cpu(cpu, number, first) for cpu in mine]
        first += count
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "source": SOURCE,
        "online": f"0-{first - 1}",
        "sockets": sockets,
        "numa": numa,
        "l3": caches,
        "cores": [str(cpu) for cpu in range(first)],
        "cpus": cpus,
    }
    rows = {number: _costs(zones[number], where) for number in counts}
    if all(row.keys() >= counts.keys() for row in rows.values()):
        document["numa_distances"] = {
            "nodes": list(counts),
            "rows": {str(n): [rows[n][other] for other in counts] for n in counts},
        }
    return json.dumps(document).encode()


def _cpu(cpu: int, node: int, first: int) -> dict[str, Any]:
    return {
        "cpu": cpu,
        "online": True,
        "core": cpu,
        "core_id": cpu,
        "socket": node,
        "die": 0,
        "numa": node,
        "l3": first,
    }


def _nodes(found: Mapping[str, Any], where: str) -> Iterable[Mapping[str, Any]]:
    for zone in _listed(found.get("zones"), f"{where}: zones"):
        if zone.get("type") == _NODE:
            yield zone


def _number(zone: Mapping[str, Any], where: str) -> int:
    name = str(zone.get("name"))[:100]
    number = name.removeprefix(_PREFIX)
    if not (name.startswith(_PREFIX) and number.isascii() and number.isdecimal()):
        raise KubernetesError(f"{where}: zone {name!r} is called other than node-0")
    if len(number) > 4:
        raise KubernetesError(f"{where}: zone {name!r}: no machine has so many NUMA nodes")
    return int(number)


def _cpus(zone: Mapping[str, Any], where: str) -> int:
    milli = _capacity(zone, "cpu", where)
    count = -(-milli.milli_value() // 1000) if milli is not None else 0
    if not 0 <= count <= _MOST:
        raise KubernetesError(f"{where}: zone {zone.get('name')}: {count} CPUs")
    return count


def _memory(zone: Mapping[str, Any], where: str) -> int | None:
    size = _capacity(zone, "memory", where)
    return None if size is None else max(0, size.value())


def _capacity(zone: Mapping[str, Any], resource: str, where: str) -> Quantity | None:
    for one in _listed(zone.get("resources"), f"{where}: resources of a zone"):
        if one.get("name") == resource:
            try:
                return Quantity.parse(str(one.get("capacity")))
            except QuantityError as error:
                raise KubernetesError(
                    f"{where}: {resource} of {zone.get('name')}: {error}"
                ) from None
    return None


def _costs(zone: Mapping[str, Any], where: str) -> dict[int, int]:
    costs = {}
    for one in _listed(zone.get("costs"), f"{where}: costs of a zone"):
        value = one.get("value")
        if isinstance(value, bool) or not isinstance(value, int):
            raise KubernetesError(f"{where}: a cost of {zone.get('name')} is no number")
        costs[_number(one, where)] = value
    return costs


def _listed(value: object, what: str) -> Iterable[Mapping[str, Any]]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise KubernetesError(f"{what}: must be a list of objects")
    yield from value
