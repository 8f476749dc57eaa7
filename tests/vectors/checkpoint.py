"""Replays ``checkpoint*.jsonl``: the CPU manager's state file and the start of its policy.

Cases without ``version`` are of 1.34; where ``want_1_35`` tells the answer of 1.35, too, both are
replayed, and every version that ``also`` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.kubelet.versions import named_version
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.layouts import CPU_STATE, Layout, StateForm, StateForms
from pinfold.state.ledger import Ledger
from pinfold.state.restore import RestoreError, restore, to_checkpoint
from pinfold.state.startup import StartError, start_policy
from tests.vectors import Case, Outcome


def claims(case: Case) -> bool:
    """Tell the kinds ``write``, ``write_v1`` and ``restore`` by their fields."""
    if case.get("kind") in ("write", "write_v1"):
        return "entries" in case and "default" in case
    return case.get("kind") == "restore" and "initial_containers" in case


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Write or restore the recorded state and compare every byte and text."""
    problems = []
    for version, want in _answers(case):
        if case["kind"] == "restore":
            got = _restore(case, topologies[case["topo"]], form_of(case, CPU_STATE, version))
        elif case["kind"] == "write_v1":
            got = _write_v1(case)
        else:
            got = _write(case, form_of(case, CPU_STATE, version))
        problems += [
            f"{version}, {key}: {got.get(key)!r} != {want.get(key)!r}"
            for key in sorted(want.keys() | got.keys())
            if got.get(key) != want.get(key)
        ]
    return Outcome(passed=not problems, detail="; ".join(problems))


def _answers(case: Case) -> Iterator[tuple[str, Case]]:
    """The versions whose answers a case has, with the answers."""
    yield case.get("version", "1.34"), case["want"]
    for version in case.get("also", ()):
        yield version, case["want"]
    if "want_1_35" in case:
        yield "1.35", case["want_1_35"]


def form_of(case: Case, table: StateForms, version: str) -> StateForm:
    """How the kubelet of a case reads and writes a file."""
    config = NodeConfig(
        kubelet_version=named_version(version).version, feature_gates=case.get("gates", {})
    )
    return table.of(config)


def _write(case: Case, form: StateForm) -> dict[str, object]:
    ledger = Ledger(
        case["policy"],
        CPUSet.parse(case["default"]),
        {
            uid: {name: CPUSet.parse(cpus) for name, cpus in containers.items()}
            for uid, containers in case["entries"].items()
        },
        bubbles={uid: CPUSet.parse(cpus) for uid, cpus in case.get("pod_assignments", {}).items()},
    )
    written = to_checkpoint(ledger, form.writes)
    fresh = to_checkpoint(Ledger(case["policy"], CPUSet()), form.writes).encode().decode()
    hashed = {"hash_input": written.hash_input()} if "hash_input" in case["want"] else {}
    return {
        "file": written.encode().decode(),
        "checksum": written.checksum,
        **hashed,
        "fresh_file": fresh,
        "cleared_file": fresh,
    }


def _write_v1(case: Case) -> dict[str, object]:
    written = CPUManagerCheckpoint(
        Layout.V1, case["policy"], case["default"], container_ids=case["entries"]
    ).sealed()
    return {"file": written.encode().decode(), "checksum": written.checksum}


def _restore(case: Case, topology: CPUTopology, form: StateForm) -> dict[str, object]:
    ids = {cid: (uid, name) for uid, name, cid in case["initial_containers"]}
    file = None if case["file"] is None else case["file"].encode()
    try:
        ledger = restore(file, case["policy"], ids, path="<FILE>", form=form)
    except RestoreError as error:
        return {"restore_err": str(error), "file_after": case["file"]}
    restored = case["file"]
    if file is None:
        restored = to_checkpoint(ledger, form.writes).encode().decode()
    got: dict[str, object] = {
        "restore_err": None,
        "start_err": None,
        "default": str(ledger.default),
        "assignments": _texts(ledger),
        "file_after_restore": restored,
    }
    if ledger.bubbles:
        got["pod_assignments"] = {uid: str(cpus) for uid, cpus in ledger.bubbles.items()}
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
    got["file_after_start"] = restored
    if changed:
        got["file_after_start"] = to_checkpoint(started, form.writes).encode().decode()
    return got


def _texts(ledger: Ledger) -> dict[str, dict[str, str]]:
    return {
        uid: {name: str(cpus) for name, cpus in containers.items()}
        for uid, containers in ledger.assignments.items()
    }
