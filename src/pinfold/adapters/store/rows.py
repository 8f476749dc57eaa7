"""Between rows and records; whatever either of them holds, the error names the place."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from msgspec import UNSET

from pinfold.adapters.store.grants import (
    read_bubble_memory,
    read_devices,
    read_memory,
    write_grants,
)
from pinfold.adapters.store.moves import read_move, write_move
from pinfold.adapters.store.objects import read_objects, write_objects
from pinfold.adapters.store.schema import REMEDY
from pinfold.core.values.cpuset import MAX_CPU, CPUSet, CPUSetError
from pinfold.ports.errors import StoreError
from pinfold.ports.records import (
    Batch,
    ByLoad,
    HistoryEntry,
    NodeRecord,
    PodPhase,
    PodRecord,
    Record,
)

_REFUSALS: Final = (sqlite3.IntegrityError, ValueError, OverflowError)
"""What a value may be met with: constraints, texts that are no UTF-8, numbers above 64 bits."""

_T = TypeVar("_T")
_V = TypeVar("_V")


def read_record(database: sqlite3.Connection, file: str) -> Record:
    """Everything but the history, as of one moment.

    Raises:
        StoreError: a value that cannot be; the message names table and row.
        sqlite3.Error: the file cannot be read.
    """
    # Beside a running agent, four statements on their own would be four moments.
    database.execute("BEGIN")
    try:
        node, pods = _read_node(database, file), _read_pods(database, file)
        move = read_move(database, file)
        generation, objects = read_generation(database), read_objects(database, file)
        return Record(node, pods, generation, move=move, objects=objects)
    finally:
        database.execute("ROLLBACK")


def read_generation(database: sqlite3.Connection) -> int:
    """How many batches were committed; raises sqlite3.Error."""
    (generation,) = database.execute("SELECT coalesce(max(generation), 0) FROM commits").fetchone()
    return int(generation)


def read_history(
    database: sqlite3.Connection,
    pod: str | None,
    namespace: str | None,
    kinds: Collection[str],
    limit: int,
) -> tuple[HistoryEntry, ...]:
    """The newest entries first.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    of_pod = "" if pod is None else "AND (pod = ? OR pod_uid = ?)"
    of_namespace = "" if namespace is None else "AND substr(pod, 1, ?) = ?"
    of_kind = f"AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
    # The numbers first: documents are long, and those of older entries need not be read.
    rows = database.execute(
        "SELECT at, kind, pod_uid, pod, document, number FROM history "  # noqa: S608 - texts of ours
        f"WHERE number IN (SELECT number FROM history WHERE TRUE {of_pod} {of_namespace} {of_kind} "
        f"ORDER BY number DESC LIMIT {max(limit, 0):d}) ORDER BY number DESC",
        (
            *(() if pod is None else (pod, pod)),
            *(() if namespace is None else (len(namespace) + 1, f"{namespace}/")),
            *kinds,
        ),
    )
    return tuple(HistoryEntry(*row) for row in rows)


def check_history(database: sqlite3.Connection, file: str) -> None:
    """Make sure that the history's documents are JSON.

    Raises:
        StoreError: one is not; the message names its row.
        sqlite3.Error: the file cannot be read.
    """
    for (number,) in database.execute(
        "SELECT number FROM history WHERE NOT json_valid(document) LIMIT 1"
    ):
        raise StoreError(f"{file}: table history, row {number}: the document is no JSON", REMEDY)


def write_batch(
    database: sqlite3.Connection, file: str, batch: Batch, generation: int, history_limit: int
) -> None:
    """Carry out a batch inside of a transaction, which the caller begins and ends.

    Raises:
        StoreError: a value that the record does not take; the message names its owner.
        sqlite3.Error: it cannot be written.
    """
    database.execute("INSERT OR REPLACE INTO commits VALUES (1, ?)", (generation,))
    for uid in batch.drop:
        _fit(f"{file}: pod {uid!r}", _drop, database, uid)
    if len(batch.put) > 1:
        # Within a batch a name may go from one pod to another, in whichever order they come.
        for pod in batch.put:
            _fit(f"{file}: pod {pod.uid!r}", _retire, database, pod.uid)
    for pod in batch.put:
        place = f"{file}: pod {pod.namespace + '/' + pod.name!r} ({pod.uid!r})"
        _fit(place, _put, database, pod)
    if (node := batch.node) is not None:
        _fit(f"{file}: the node", _put_node, database, node)
    if batch.move is not UNSET:
        _fit(f"{file}: the plan of moves", write_move, database, batch.move)
    if batch.objects:
        _fit(f"{file}: objects", write_objects, database, batch.objects)
    for entry in batch.history:
        place = f"{file}: the history's entry {entry.kind!r} of {entry.pod!r}"
        _fit(place, _add, database, entry)
    if batch.history:
        trim_history(database, history_limit)


def trim_history(database: sqlite3.Connection, limit: int) -> None:
    """Drop the oldest entries, by number: clocks jump; raises sqlite3.Error."""
    database.execute(
        "DELETE FROM history WHERE number <= (SELECT max(number) FROM history) - ?", (limit,)
    )


def _read_node(database: sqlite3.Connection, file: str) -> NodeRecord | None:
    node = None
    for policy, memory, runtime, cgroups, version, *sets in database.execute(
        "SELECT policy_name, memory_policy, runtime, cgroups, kubelet_version, default_cpus, "
        "reserved_cpus, machine_cpus FROM node"
    ):
        default, reserved, machine = (_read(CPUSet.parse, t, f"{file}: table node") for t in sets)
        node = NodeRecord(policy, default, reserved, machine, memory, runtime, cgroups, version)
    return node


def _read_pods(database: sqlite3.Connection, file: str) -> dict[str, PodRecord]:
    assignments: dict[int, dict[str, CPUSet]] = {}
    baselines: dict[int, dict[str, CPUSet]] = {}
    idle: dict[int, dict[str, CPUSet]] = {}
    for number, container, cpus, baseline, quiet in database.execute(
        "SELECT pod, container, cpus, baseline, idle FROM assignments"
    ):
        place = f"{file}: table assignments, pod {number}, container {container!r}"
        assignments.setdefault(number, {})[container] = _read(_owned, cpus, place)
        if baseline is not None:
            baselines.setdefault(number, {})[container] = _read(CPUSet.parse, baseline, place)
        if quiet is not None:
            idle.setdefault(number, {})[container] = _read(CPUSet.parse, quiet, place)
    restarts: dict[int, dict[str, int]] = {}
    exit_codes: dict[int, dict[str, int]] = {}
    for number, container, count, code in database.execute(
        "SELECT pod, container, restarts, exit_code FROM containers"
    ):
        if count is not None:
            restarts.setdefault(number, {})[container] = count
        if code is not None:
            exit_codes.setdefault(number, {})[container] = code
    load_driven: dict[int, dict[str, ByLoad]] = {}
    for number, container, used, *when in database.execute(
        "SELECT pod, container, used, at, uptime, boot FROM load_driven"
    ):
        place = f"{file}: table load_driven, pod {number}, container {container!r}"
        one = ByLoad(_read(_usage, used, place), *when)
        load_driven.setdefault(number, {})[container] = one
    memory = read_memory(database, file)
    bubble_memory = read_bubble_memory(database, file)
    devices = read_devices(database, file)
    pods = {}
    for (
        number,
        uid,
        namespace,
        name,
        manifest,
        phase,
        source,
        reason,
        message,
        at,
        bubble,
    ) in database.execute(
        "SELECT number, uid, namespace, name, manifest, phase, source, reason, message, "
        "admitted_at, bubble FROM pods ORDER BY number"
    ):
        place = f"{file}: table pods, row {number}"
        pods[uid] = PodRecord(
            uid=uid,
            namespace=namespace,
            name=name,
            manifest=_read(_manifest, manifest, place),
            phase=_read(PodPhase, phase, place),
            source=source,
            reason=reason,
            message=message,
            admitted_at=at,
            assignments=assignments.get(number, {}),
            restarts=restarts.get(number, {}),
            exit_codes=exit_codes.get(number, {}),
            memory=memory.get(number, {}),
            devices=devices.get(number, {}),
            baselines=baselines.get(number, {}),
            idle=idle.get(number, {}),
            load_driven=load_driven.get(number, {}),
            bubble=CPUSet() if bubble is None else _read(_owned, bubble, place),
            bubble_memory=bubble_memory.get(number, ()),
        )
    return pods


def _drop(database: sqlite3.Connection, uid: str) -> None:
    database.execute("DELETE FROM pods WHERE uid = ?", (uid,))


def _retire(database: sqlite3.Connection, uid: str) -> None:
    database.execute("UPDATE pods SET phase = 'Failed' WHERE uid = ?", (uid,))


def _put(database: sqlite3.Connection, pod: PodRecord) -> None:
    (number,) = database.execute(
        "INSERT INTO pods (uid, namespace, name, manifest, phase, source, reason, message, "
        "admitted_at, bubble) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (uid) DO UPDATE SET "
        "namespace = excluded.namespace, name = excluded.name, manifest = excluded.manifest, "
        "phase = excluded.phase, source = excluded.source, reason = excluded.reason, "
        "message = excluded.message, admitted_at = excluded.admitted_at, "
        "bubble = excluded.bubble RETURNING number",
        (
            pod.uid,
            pod.namespace,
            pod.name,
            _manifest(pod.manifest),
            pod.phase.value,
            pod.source,
            pod.reason,
            pod.message,
            pod.admitted_at,
            _text(pod.bubble) if pod.bubble else None,
        ),
    ).fetchone()
    database.execute("DELETE FROM assignments WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO assignments VALUES (?, ?, ?, ?, ?)",
        [
            (number, container, _text(cpus), _baseline(pod, container), _idle(pod, container))
            for container, cpus in pod.assignments.items()
        ],
    )
    database.execute("DELETE FROM containers WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO containers VALUES (?, ?, ?, ?)",
        [
            (number, container, pod.restarts.get(container), pod.exit_codes.get(container))
            for container in {*pod.restarts, *pod.exit_codes}
        ],
    )
    database.execute("DELETE FROM load_driven WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO load_driven VALUES (?, ?, ?, ?, ?, ?)",
        [
            (number, container, one.used, one.at, one.uptime, one.boot)
            for container, one in pod.load_driven.items()
        ],
    )
    write_grants(database, number, pod)


def _put_node(database: sqlite3.Connection, node: NodeRecord) -> None:
    database.execute(
        "INSERT OR REPLACE INTO node VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            node.policy_name,
            _text(node.default),
            _text(node.reserved),
            _text(node.machine),
            node.memory_policy,
            node.runtime,
            node.cgroups,
            node.kubelet_version,
        ),
    )


def _add(database: sqlite3.Connection, entry: HistoryEntry) -> None:
    database.execute(
        "INSERT INTO history (at, kind, pod_uid, pod, document) VALUES (?, ?, ?, ?, ?)",
        (entry.at, entry.kind, entry.pod_uid, entry.pod, entry.document),
    )


def _manifest(text: str) -> str:
    """The same text; ``ValueError`` where it is no JSON object."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("the manifest is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the manifest is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("the manifest is no JSON object")  # noqa: TRY004 - a wrong value, no bug
    return text


def _text(cpus: CPUSet) -> str:
    if cpus.mask.bit_length() > MAX_CPU + 1:
        raise ValueError(f"CPU ids above {MAX_CPU} would not be read back")
    return str(cpus)


def _idle(pod: PodRecord, container: str) -> str | None:
    """What is written of a container's idle siblings: nothing where it is not SMT-isolated."""
    return _text(pod.idle[container]) if container in pod.idle else None


def _baseline(pod: PodRecord, container: str) -> str | None:
    cpus = pod.baselines.get(container)
    return None if cpus is None else _text(cpus)


def _owned(text: str) -> CPUSet:
    if not (cpus := CPUSet.parse(text)):
        raise ValueError("an owner of no CPUs")
    return cpus


def _usage(cpus: float | None) -> float | None:
    if cpus is not None and not 0 <= cpus < math.inf:
        raise ValueError(f"a usage of {cpus} CPUs")
    return cpus


def _read(parse: Callable[[_V], _T], value: _V, place: str) -> _T:
    try:
        return parse(value)
    except (CPUSetError, ValueError) as error:
        raise StoreError(f"{place}: {error}", REMEDY) from None


def _fit(
    place: str,
    write: Callable[[sqlite3.Connection, _T], None],
    database: sqlite3.Connection,
    value: _T,
) -> None:
    try:
        write(database, value)
    except _REFUSALS as error:
        raise StoreError(f"{place}: {_explain(error)}") from None


def _explain(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "a text that is no UTF-8"
    if "pods.namespace, pods.name" in str(error):
        return "another active pod has that name (UNIQUE constraint failed)"
    return str(error)
