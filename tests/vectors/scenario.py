"""Replays ``scenario`` cases: a whole node, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from pinfold.core.kubelet.faults import CPUS_NOT_FREE, DISTRIBUTION_HANGS
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.memory import Block
from pinfold.core.moves.kubelet_resize import INFEASIBLE
from pinfold.core.topology_manager.hints import ResourceHints, TopologyHint
from pinfold.core.topology_manager.manager import Admission
from pinfold.core.values.cpuset import iter_bits
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from tests.vectors import Case, Outcome
from tests.vectors.kubelet.decision import planned
from tests.vectors.kubelet.kubelet import Kubelet
from tests.vectors.kubelet.managers import CPUs, Devices, Memory
from tests.vectors.kubelet.node import StartFailedError
from tests.vectors.kubelet.report import report
from tests.vectors.memory_policy import assignments_document, blocks_document, machine_document

Result = dict[str, Any]


def claims(case: Case) -> bool:
    """A node, and steps that are taken on it."""
    return case.get("kind") == "scenario"


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Walk the steps, and compare each result; a start that fails ends the case."""
    wanted = case["want"]["results"]
    kubelet = Kubelet(case, topologies[case["topo"]])
    for number, got in enumerate(_walk(kubelet)):
        if number == len(wanted):
            return Outcome(passed=False, detail=f"result {number} is one more than recorded: {got}")
        if problems := _differences(got, wanted[number]):
            step = "start" if number == 0 else case["steps"][number - 1]["op"]
            return Outcome(passed=False, detail=f"result {number} ({step}): {'; '.join(problems)}")
    if number + 1 < len(wanted):
        return Outcome(passed=False, detail=f"{number + 1} results, {len(wanted)} are recorded")
    return Outcome(passed=True, fault=kubelet.fault)


def _walk(kubelet: Kubelet) -> Iterable[Result]:
    case = kubelet.case
    if "files" in case:
        kubelet.active.update(dict.fromkeys(case["pods"]))
    started = _start(kubelet, case["gates"])
    yield started
    for step in case["steps"] if started["err"] is None else ():
        result = _STEPS[step["op"]](kubelet, step)
        yield result
        if result.get("err") is not None:
            return


def _differences(got: object, want: object, where: str = "") -> list[str]:
    """What differs, leaf by leaf."""
    if isinstance(got, dict) and isinstance(want, dict):
        return [
            problem
            for key in sorted(got.keys() | want.keys())
            for problem in _differences(
                got.get(key, "nothing"), want.get(key, "nothing"), f"{where}.{key}"
            )
        ]
    if where.endswith(("memory_file", "memory_file_after")):
        same = want is None or _same_memory_file(got, want)
    else:
        same = got == want
    return [] if same else [f"{where.lstrip('.')}: want {want!r}, got {got!r}"]


def _same_memory_file(got: object, want: object) -> bool:
    """Whether two files say the same.

    A kubelet writes the blocks of a container in the order of a Go map; files that were not the
    same twice are recorded as null.
    """
    if got == want:
        return True
    try:
        return isinstance(got, str) and isinstance(want, str) and _ordered(got) == _ordered(want)
    except CheckpointError:
        return False


def _ordered(file: str) -> bytes:
    """A file, whose checksum has to fit, with the blocks of each container in order of type."""
    checkpoint = MemoryManagerCheckpoint.parse(file.encode())
    checkpoint.verify()
    return replace(
        checkpoint,
        entries={
            uid: {name: _by_type(blocks) for name, blocks in (containers or {}).items()}
            for uid, containers in (checkpoint.entries or {}).items()
        },
        pod_entries=None
        if checkpoint.pod_entries is None
        else {uid: _by_type(blocks) for uid, blocks in checkpoint.pod_entries.items()},
        checksum=0,
    ).encode()


def _by_type(blocks: Iterable[Block] | None) -> tuple[Block, ...]:
    return tuple(sorted(blocks or (), key=lambda block: block.type))


def _start(kubelet: Kubelet, gates: Mapping[str, bool]) -> Result:
    try:
        kubelet.start(gates)
    except StartFailedError as failure:
        return {"err": str(failure), "phase": failure.phase}
    return {"err": None} | _state(kubelet)


def _state(kubelet: Kubelet) -> Result:
    ledger = kubelet.managers.cpus.ledger
    cpu: Result = {
        "default": str(ledger.default),
        "assignments": {
            uid: {name: str(cpus) for name, cpus in containers.items()}
            for uid, containers in ledger.assignments.items()
        },
    }
    if ledger.bubbles:
        cpu["pod_assignments"] = {uid: str(cpus) for uid, cpus in ledger.bubbles.items()}
    found: Result = {"cpu": cpu}
    if kubelet.managers.memory is not None:
        state = kubelet.managers.memory.state
        found["memory"] = {
            "assignments": assignments_document(state.assignments),
            "machine": machine_document(state.machine),
        }
        if state.bubbles:
            found["memory"]["pod_assignments"] = {
                uid: blocks_document(blocks) for uid, blocks in state.bubbles.items()
            }
    return found


def _files(kubelet: Kubelet) -> Result:
    found = {"cpu_file": _text(kubelet.files.cpu)}
    if kubelet.policies.memory is not None:
        found["memory_file"] = _text(kubelet.files.memory)
    return found


def _text(file: bytes | None) -> str | None:
    return None if file is None else file.decode()


def _admit(kubelet: Kubelet, step: Case) -> Result:
    pod = kubelet.activate(step["pod"])
    plan = planned(kubelet, pod)
    admission = kubelet.admit(pod)
    stored = kubelet.affinity_of(pod)
    affinity = {name: _hint(hint) for name, hint in stored.items()}
    result = {"affinity": affinity} | _verdict(admission) | _state(kubelet)
    if plan is not None:
        if plan["fault"] in _REFUSED:
            kubelet.fault = plan["fault"]
        else:
            result |= _planned_otherwise(plan, result)
    return result


def _planned_otherwise(plan: Result, result: Result) -> Result:
    """What a plan would answer, where it is not what the kubelet does."""
    done = {name: result[name] for name in ("admit", "reason", "message")}
    if done["admit"]:
        done |= {"cpus": result["cpu"]["assignments"], "default": result["cpu"]["default"]}
        if "memory" in result:
            done |= {
                "memory": result["memory"]["assignments"],
                "machine": result["memory"]["machine"],
            }
    told = {name: plan[name] for name in plan if name != "fault"}
    return {} if told == done else {"planned": told}


def _verdict(admission: Admission) -> Result:
    return {
        "admit": admission.admitted,
        "reason": admission.reason or "",
        "message": admission.message or "",
    }


def _delete(kubelet: Kubelet, step: Case) -> Result:
    kubelet.forget(step["pod"])
    return _state(kubelet)


def _hints(kubelet: Kubelet, step: Case) -> Result:
    pod = kubelet.activate(step["pod"])
    found = {}
    for manager in kubelet.managers.providers:
        found[f"{_NAMES[type(manager)]}_hints"] = {
            "pod": _listed(manager.get_pod_topology_hints(pod)),
            "containers": {
                one.name: _listed(manager.get_topology_hints(pod, one))
                for one in pod.all_containers
            },
        }
    return found


def _remove(kubelet: Kubelet, step: Case) -> Result:
    kubelet.remove(step["pod"], step["container"])
    return {"err": None} | _state(kubelet)


def _start_container(kubelet: Kubelet, step: Case) -> Result:
    kubelet.start_container(kubelet.told(kubelet.pods[step["pod"]]), step["container"])
    return _state(kubelet)


def _restart(kubelet: Kubelet, step: Case) -> Result:
    before = _files(kubelet)
    started = _start(kubelet, step.get("gates", kubelet.gates))
    after = {f"{name}_after": file for name, file in _files(kubelet).items()}
    return started | before | after


def _resize(kubelet: Kubelet, step: Case) -> Result:
    handled, admission = kubelet.resize(step["pod"], step["spec"])
    result: Result = {
        "handler": {
            "admit": handled is None,
            "reason": "" if handled is None else INFEASIBLE,
            "message": handled or "",
        }
    }
    if admission is not None:
        result |= _verdict(admission)
    return result | _state(kubelet)


def _hint(hint: TopologyHint) -> Case:
    mask = None if hint.mask is None else list(iter_bits(hint.mask))
    return {"mask": mask, "preferred": hint.preferred}


def _listed(hints: ResourceHints | None) -> dict[str, list[Case] | None] | None:
    if hints is None:
        return None
    return {
        resource: None if found is None else [_hint(hint) for hint in found]
        for resource, found in hints.items()
    }


_REFUSED = {CPUS_NOT_FREE.slug, DISTRIBUTION_HANGS.slug}
"""The faults of the kubelet that lead to no valid placement: a plan refuses."""

_NAMES: Mapping[type, str] = {CPUs: "cpu", Memory: "memory", Devices: "device"}
_STEPS: Mapping[str, Callable[[Kubelet, Case], Result]] = {
    "admit": _admit,
    "delete": _delete,
    "files": lambda kubelet, _: _files(kubelet),
    "hints": _hints,
    "remove": _remove,
    "report": lambda kubelet, _: report(kubelet),
    "resize": _resize,
    "restart": _restart,
    "start_container": _start_container,
}
