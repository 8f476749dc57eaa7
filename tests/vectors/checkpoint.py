"""Replays ``checkpoint.jsonl``: the CPU manager's state file and the start of its policy."""

from __future__ import annotations

from collections.abc import Mapping

from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint, Layout
from pinfold.state.ledger import Ledger
from pinfold.state.restore import (
    KUBELET_1_34,
    KUBELET_1_36,
    RestoreError,
    restore,
    to_checkpoint,
)
from pinfold.state.startup import StartError, start_policy
from tests.vectors import Case, Outcome


def claims(case: Case) -> bool:
    """Tell the kinds ``write``, ``write_v1`` and ``restore`` by their fields."""
    if case.get("kind") in ("write", "write_v1"):
        return "entries" in case and "default" in case
    return case.get("kind") == "restore" and "initial_containers" in case


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Write or restore the recorded state and compare every byte and text."""
    got = {"write": _write, "write_v1": _write_v1}.get(case["kind"], lambda _: {})(case)
    if case["kind"] == "restore":
        got = _restore(case, topologies[case["topo"]])
    wrong = [
        key for key in case["want"].keys() | got.keys() if got.get(key) != case["want"].get(key)
    ]
    detail = "; ".join(f"{k}: {got.get(k)!r} != {case['want'].get(k)!r}" for k in sorted(wrong))
    return Outcome(passed=not wrong, detail=detail)


def _write(case: Case) -> dict[str, object]:
    ledger = Ledger(
        case["policy"],
        CPUSet.parse(case["default"]),
        {
            uid: {name: CPUSet.parse(cpus) for name, cpus in containers.items()}
            for uid, containers in case["entries"].items()
        },
    )
    written = to_checkpoint(ledger)
    fresh = to_checkpoint(Ledger(case["policy"], CPUSet())).encode().decode()
    return {
        "file": written.encode().decode(),
        "checksum": written.checksum,
        "fresh_file": fresh,
        "cleared_file": fresh,
    }


def _write_v1(case: Case) -> dict[str, object]:
    written = CPUManagerCheckpoint(
        Layout.V1, case["policy"], case["default"], container_ids=case["entries"]
    ).sealed()
    return {"file": written.encode().decode(), "checksum": written.checksum}


def _restore(case: Case, topology: CPUTopology) -> dict[str, object]:
    ids = {cid: (uid, name) for uid, name, cid in case["initial_containers"]}
    file = None if case["file"] is None else case["file"].encode()
    newer = case.get("version") == "1.36"
    reader = KUBELET_1_36 if newer else KUBELET_1_34
    try:
        ledger = restore(file, case["policy"], ids, path="<FILE>", reader=reader)
    except RestoreError as error:
        return {"restore_err": str(error), "file_after": case["file"]}
    restored = to_checkpoint(ledger).encode().decode() if file is None else case["file"]
    got: dict[str, object] = {
        "restore_err": None,
        "start_err": None,
        "default": str(ledger.default),
        "assignments": _texts(ledger),
        "file_after_restore": restored,
    }
    try:
        started = start_policy(
            ledger,
            topology,
            CPUSet.parse(case["reserved"]),
            StaticPolicyOptions(
                strict_cpu_reservation=case["options"].get("strict-cpu-reservation") == "true"
            ),
        )
    except StartError as error:
        got["start_err"] = str(error)
        started = ledger
    got["default_after_start"] = str(started.default)
    # The kubelet writes only when something changes.
    changed = started.default != ledger.default
    got["file_after_start"] = to_checkpoint(started).encode().decode() if changed else restored
    return got


def _texts(ledger: Ledger) -> dict[str, dict[str, str]]:
    return {
        uid: {name: str(cpus) for name, cpus in containers.items()}
        for uid, containers in ledger.assignments.items()
    }
