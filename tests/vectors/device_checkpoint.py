"""Replays ``devicemanager.jsonl``, kinds ``checkpoint`` and ``checkpoint_read``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TypeVar

from pinfold.core.machine.topology import CPUTopology
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint, PodDevicesEntry
from tests.vectors import Case, Outcome

_K = TypeVar("_K", int, str)


def claims(case: Case) -> bool:
    """Tell the two kinds by their fields."""
    if case.get("kind") == "checkpoint":
        return "pod_device_entries_null" in case.get("in", {})
    return case.get("kind") == "checkpoint_read" and "file" in case


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Write the recorded content, or read the recorded file."""
    del topologies
    return _write(case) if case["kind"] == "checkpoint" else _read(case)


def _write(case: Case) -> Outcome:
    logical = case["in"]
    entries = tuple(
        PodDevicesEntry(
            entry["pod_uid"],
            entry["container"],
            entry["resource"],
            _devices({int(k): v for k, v in entry["device_ids"].items()})
            if entry["device_ids"] is not None
            else None,
            None
            if entry["alloc_resp_base64"] is None
            else base64.b64decode(entry["alloc_resp_base64"]),
        )
        for entry in logical["entries"] or ()
    )
    written = DeviceManagerCheckpoint(
        None if logical["pod_device_entries_null"] else entries,
        None if logical["registered_null"] else _devices(logical["registered"]),
    ).sealed()
    text = written.encode().decode()
    hash_input = case.get("hash_input", written.hash_input())
    again = DeviceManagerCheckpoint.parse(case["file"].encode())
    passed = text == case["file"] and written.hash_input() == hash_input and again == written
    return Outcome(passed, "" if passed else f"{text} != {case['file']}")


def _devices(devices: Mapping[_K, list[str] | None]) -> dict[_K, tuple[str, ...] | None]:
    return {key: None if ids is None else tuple(ids) for key, ids in devices.items()}


def _read(case: Case) -> Outcome:
    error = ""
    try:
        DeviceManagerCheckpoint.parse(case["file"].encode()).verify()
    except CheckpointError as failure:
        error = str(failure)
    return Outcome(error == case["error"], f"{error!r} != {case['error']!r}")
