"""Between rows and records; whatever the rows hold, the error names the place."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

from pinfold.core.cpuset import CPUSet, CPUSetError
from pinfold.node.ports import StoreError
from pinfold.node.records import Batch, HistoryEntry, NodeRecord, PodPhase, PodRecord, Record

REMEDY: Final = (
    "move the file away to start afresh: pods that run are then ended; the mirrored "
    "cpu_manager_state beside it says who had which CPUs"
)
_T = TypeVar("_T")


def read_record(database: sqlite3.Connection, file: str) -> Record:
    """Everything but the history.

    Raises:
        StoreError: a value that cannot be; the message names table and row.
        sqlite3.Error: the file cannot be read.
    """
    node = None
    for row in database.execute(
        "SELECT policy_name, default_cpus, reserved_cpus, machine_cpus FROM node"
    ):
        place = f"{file}: table node"
        node = NodeRecord(row[0], *(_cpus(text, place) for text in row[1:]))
    assignments: dict[int, dict[str, CPUSet]] = {}
    for number, container, cpus in database.execute("SELECT pod, container, cpus FROM assignments"):
        place = f"{file}: table assignments, pod {number}, container {container}"
        assignments.setdefault(number, {})[container] = _cpus(cpus, place)
    restarts: dict[int, dict[str, int]] = {}
    exit_codes: dict[int, dict[str, int]] = {}
    for number, container, count, code in database.execute(
        "SELECT pod, container, restarts, exit_code FROM containers"
    ):
        if count is not None:
            restarts.setdefault(number, {})[container] = count
        if code is not None:
            exit_codes.setdefault(number, {})[container] = code
    pods = {}
    for row in database.execute(
        "SELECT number, uid, namespace, name, manifest, phase, source, reason, message, "
        "admitted_at FROM pods ORDER BY number"
    ):
        number, uid, namespace, name, manifest, phase, source, reason, message, at = row
        place = f"{file}: table pods, row {number}"
        pods[uid] = PodRecord(
            uid=uid,
            namespace=namespace,
            name=name,
            manifest=_read(json.loads, manifest, place) and manifest,
            phase=_read(PodPhase, phase, place),
            source=source,
            reason=reason,
            message=message,
            admitted_at=at,
            assignments=assignments.get(number, {}),
            restarts=restarts.get(number, {}),
            exit_codes=exit_codes.get(number, {}),
        )
    return Record(node, pods)


def write_batch(database: sqlite3.Connection, batch: Batch, history_limit: int) -> None:
    """Carry out a batch inside of a transaction.

    Raises:
        sqlite3.Error: it does not fit the tables, or cannot be written.
    """
    for uid in batch.drop:
        database.execute("DELETE FROM pods WHERE uid = ?", (uid,))
    for pod in batch.put:
        _put(database, pod)
    if (node := batch.node) is not None:
        database.execute(
            "INSERT OR REPLACE INTO node VALUES (1, ?, ?, ?, ?)",
            (node.policy_name, str(node.default), str(node.reserved), str(node.machine)),
        )
    if batch.history:
        database.executemany(
            "INSERT INTO history (at, kind, pod_uid, pod, document) VALUES (?, ?, ?, ?, ?)",
            [(e.at, e.kind, e.pod_uid, e.pod, e.document) for e in batch.history],
        )
        database.execute(
            "DELETE FROM history WHERE number <= (SELECT max(number) FROM history) - ?",
            (history_limit,),
        )


def read_history(
    database: sqlite3.Connection, pod: str | None, limit: int
) -> tuple[HistoryEntry, ...]:
    """The newest entries first.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    which, values = ("", ()) if pod is None else ("WHERE pod = ?1 OR pod_uid = ?1", (pod,))
    rows = database.execute(
        "SELECT at, kind, pod_uid, pod, document, number FROM history "  # noqa: S608 - two texts of ours
        f"{which} ORDER BY number DESC LIMIT {max(limit, 0):d}",
        values,
    )
    return tuple(HistoryEntry(*row) for row in rows)


def _put(database: sqlite3.Connection, pod: PodRecord) -> None:
    (number,) = database.execute(
        "INSERT INTO pods (uid, namespace, name, manifest, phase, source, reason, message, "
        "admitted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET "
        "namespace = excluded.namespace, name = excluded.name, manifest = excluded.manifest, "
        "phase = excluded.phase, source = excluded.source, reason = excluded.reason, "
        "message = excluded.message, admitted_at = excluded.admitted_at RETURNING number",
        (
            pod.uid,
            pod.namespace,
            pod.name,
            pod.manifest,
            pod.phase.value,
            pod.source,
            pod.reason,
            pod.message,
            pod.admitted_at,
        ),
    ).fetchone()
    database.execute("DELETE FROM assignments WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO assignments VALUES (?, ?, ?)",
        [(number, container, str(cpus)) for container, cpus in pod.assignments.items()],
    )
    database.execute("DELETE FROM containers WHERE pod = ?", (number,))
    database.executemany(
        "INSERT INTO containers VALUES (?, ?, ?, ?)",
        [
            (number, container, pod.restarts.get(container), pod.exit_codes.get(container))
            for container in {*pod.restarts, *pod.exit_codes}
        ],
    )


def _cpus(text: str, place: str) -> CPUSet:
    return _read(CPUSet.parse, text, place)


def _read(parse: Callable[[str], _T], text: str, place: str) -> _T:
    try:
        return parse(text)
    except (CPUSetError, ValueError) as error:
        raise StoreError(f"{place}: {error}", REMEDY) from None
