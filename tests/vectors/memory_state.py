"""Replays ``memorymanager.jsonl.gz``, kinds ``state_file`` and ``restart``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.memory import NodeMemory
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.layouts import MEMORY_STATE, Layout
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import MemoryStartError, start_memory_policy
from tests.vectors import Case, Outcome
from tests.vectors.checkpoint import form_of
from tests.vectors.memory_policy import assignments_document, machine_document


def claims(case: Case) -> bool:
    """Tell the two kinds by their fields."""
    if case.get("kind") == "state_file":
        return "file" in case and "checksum" in case
    return case.get("kind") == "restart" and "machine" in case and "phase" in case


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Write the file again, or start a memory manager on it."""
    del topologies
    return _state_file(case) if case["kind"] == "state_file" else _restart(case)


def _state_file(case: Case) -> Outcome:
    file = case["file"].encode()
    checkpoint = MemoryManagerCheckpoint.parse(file, Layout(case.get("layout", "v1")))
    checkpoint.verify()
    written = checkpoint.sealed()
    hash_input = case.get("hash_input", written.hash_input())
    passed = (
        written.encode() == file
        and written.checksum == case["checksum"]
        and written.hash_input() == hash_input
    )
    return Outcome(passed, "" if passed else f"{written.encode()!r} != {file!r}")


def _restart(case: Case) -> Outcome:
    answers = [(case.get("version", "1.34"), case)]
    if "want_1_35" in case:
        answers.append(("1.35", case["want_1_35"]))
    problems = []
    for version, answer in answers:
        want, found = _want(answer), _start(case, version)
        got = {key: found[key] for key in want}
        problems += [] if got == want else [f"{version}: {got} != {want}"]
    return Outcome(not problems, "; ".join(problems))


def _want(answer: Case) -> dict[str, Any]:
    want = {"phase": answer["phase"], "error": answer["error"], "state": answer["state"]}
    # None: the order of blocks was not the same twice.
    return want | ({"file_after": answer["file_after"]} if answer.get("file_after") else {})


def _start(case: Case, version: str) -> dict[str, Any]:
    nodes = {
        node["id"]: NodeMemory(
            node["memory"],
            {pool["page_size_kb"]: pool["num_pages"] for pool in node["hugepages"]},
            node["reserved"],
        )
        for node in case["machine"]["nodes"]
    }
    phase, error, state, after = "ok", "", None, case["file"]
    try:
        checkpoint = restore_memory(
            case["file"].encode(),
            case["policy"],
            path="DIR/memory_manager_state",
            form=form_of(case, MEMORY_STATE, version),
        )
        started = start_memory_policy(checkpoint, nodes)
        state = _state(started)
        if started != checkpoint:
            after = started.encode().decode()
    except CheckpointError as failure:
        phase, error = "restore", str(failure)
    except MemoryStartError as failure:
        # The recording has pX and cX where the reference names one of several at random.
        error = re.sub(r"pod: [^,]*, container: [^)]*", "pod: pX, container: cX", str(failure))
        phase = "validate"
    return {"phase": phase, "error": error, "state": state, "file_after": after}


def _state(checkpoint: MemoryManagerCheckpoint) -> dict[str, Any]:
    pods = checkpoint.pod_entries
    return {
        "assignments": assignments_document(checkpoint.entries or {}),
        "machine": machine_document(checkpoint.machine_state or {}),
        **({"pod_assignments": assignments_document({"": pods})[""]} if pods else {}),
    }
