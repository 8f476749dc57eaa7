"""A machine whose CPUs go offline stays the machine that it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.admission.admission import decide
from pinfold.admission.settling import settle
from pinfold.agent.machine_file import FILE, remember_machine, remembered_machine
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.known import known_machine
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.recovery.recovery import MismatchError, OnMismatch, Restored, restore
from pinfold.planning.planner import Planner
from pinfold.ports.records import NodeRecord, PodPhase, PodRecord, Record
from tests.scenes.manager_harness import STATIC, manifest, parse
from tests.scenes.published_schemas import machine_document
from tests.scenes.sysfs_trees import cpu_files, machine, node_files

CPUS = 8
NONE = CPUSet()


def seen(offline: CPUSet = NONE, *, cores_from: int = 0) -> Machine:
    """Two nodes of two cores with two threads, as the kernel shows them."""
    online = CPUSet(range(CPUS)) - offline
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/present": f"0-{CPUS - 1}\n", f"{cpu}/online": f"{online}\n"}
    for one in range(CPUS):
        if one in online:
            pair = CPUSet([one & ~1, one | 1]) & online
            files |= cpu_files(
                one,
                core=cores_from + one // 2,
                package=one // 4,
                siblings=f"{sum(1 << n for n in pair):x}",
            )
        else:
            files[f"{cpu}/cpu{one}/"] = ""
    for node in range(2):
        mask = sum(1 << one for one in online if one // 4 == node)
        files |= node_files(node, f"{mask:x}", memory_kb=1024 * 1024 * (1 + len(offline)))
    return machine(files)


def written(found: Machine) -> Machine:
    """After the way through the file."""
    text = json.dumps(machine_document(found))
    return machine_from_own_json(json.loads(text), file="machine.json")


@given(st.sets(st.integers(1, CPUS - 1)))
def test_what_is_known_of_an_offline_cpu_is_kept(gone: set[int]) -> None:
    before, now = seen(), seen(CPUSet(gone))
    known = known_machine(now, written(before))
    assert not known.unplaced
    assert not known.arrived
    whole, found = kubelet_view(before), kubelet_view(known.machine)
    assert found.topology.rows == whole.topology.rows
    assert (found.numa_nodes, found.unseen) == (whole.numa_nodes, whole.unseen)
    # Memory is not what it was, but what it is.
    assert [n.memory_bytes for n in known.machine.numa_nodes] == [
        n.memory_bytes for n in now.numa_nodes
    ]
    # It is known the next time, too.
    again = known_machine(now, written(known.machine)).machine
    assert machine_document(again) == machine_document(known.machine)


def test_a_cpu_that_was_never_online_has_no_place_until_it_is() -> None:
    gone = CPUSet([3])
    first = known_machine(seen(gone), None)
    assert (first.unplaced, first.arrived) == (gone, CPUSet())
    second = known_machine(seen(gone), written(first.machine))
    assert (second.unplaced, second.arrived) == (gone, CPUSet())
    third = known_machine(seen(CPUSet([5])), written(first.machine))
    assert (third.unplaced, third.arrived) == (CPUSet([5]), gone)
    fourth = known_machine(seen(), written(third.machine))
    assert (fourth.unplaced, fourth.arrived) == (CPUSet(), CPUSet([5]))


@pytest.mark.parametrize("other", [seen(cores_from=4), parse_short_form("1s2c2t")])
def test_another_machine_is_passed_over(other: Machine) -> None:
    now = seen(CPUSet([3]))
    assert known_machine(now, written(other)).machine is now


def test_the_file_may_be_missing_or_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert remembered_machine(tmp_path) is None
    remember_machine(tmp_path, seen())
    assert remembered_machine(tmp_path) == written(seen())
    stamp = (tmp_path / FILE).stat().st_ino
    remember_machine(tmp_path, seen())
    assert (tmp_path / FILE).stat().st_ino == stamp, "written without need"
    for content in ("", "{", "[]", '{"version": 7}', "\x00", "[" * 100_000):
        (tmp_path / FILE).write_text(content)
        assert remembered_machine(tmp_path) is None
        assert FILE in capsys.readouterr().out
    remember_machine(tmp_path / "none", seen())
    assert "cannot write" in capsys.readouterr().out


def restart(
    record: Record,
    before: Machine | None,
    gone: CPUSet = NONE,
    *,
    config: NodeConfig = STATIC,
    on_mismatch: OnMismatch = OnMismatch.REFUSE,
) -> Restored:
    """What an agent starts from on this machine."""
    now = seen(gone)
    known = known_machine(now, None if before is None else written(before))
    planner = Planner(known.machine, config, rules=SOUND)
    return restore(
        record,
        planner.node,
        planner.empty_with(planner.view.topology.cpus - now.online),
        parse=parse,
        on_mismatch=on_mismatch,
        unplaced=known.unplaced,
        arrived=known.arrived,
    )


def recorded(found: Restored, *pods: PodRecord) -> Record:
    """What is written down of it."""
    ledger = found.state.ledger
    assert ledger.bounds is not None
    node = NodeRecord("static", ledger.default, ledger.bounds.reserved, ledger.bounds.machine)
    return Record(node, {pod.uid: pod for pod in pods})


def owner(name: str, cpus: str) -> PodRecord:
    given = CPUSet.parse(cpus)
    return PodRecord(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        manifest=json.dumps(manifest(name, str(len(given)))),
        phase=PodPhase.RUNNING,
        assignments={"c0": given},
    )


def with_owner() -> Record:
    """A node of eight CPUs, of which one pod owns two."""
    whole = recorded(restart(Record(), None), owner("db", "2-3"))
    assert whole.node is not None
    return replace(whole, node=replace(whole.node, default=whole.node.default - CPUSet([2, 3])))


@pytest.mark.parametrize("before", [seen(), None])
@pytest.mark.parametrize("gone", ["3", "2-3", "5", "1-3,6", "1-7"])
@pytest.mark.parametrize("on_mismatch", [*OnMismatch])
def test_an_agent_starts_while_cpus_are_offline(
    gone: str, before: Machine | None, on_mismatch: OnMismatch
) -> None:
    record = with_owner()
    offline = CPUSet.parse(gone)
    found = restart(record, before, offline, on_mismatch=on_mismatch)
    assert found.report == []
    state = found.state
    assert state.ledger.cpus_of("uid-db", "c0") == CPUSet([2, 3])
    assert state.ledger.default == CPUSet.parse("0-1,4-7")
    assert state.offline == offline
    assert state.ledger.violations() == []
    # Nothing is given away of them, and the next start finds what it left.
    again = recorded(found, owner("db", "2-3"))
    assert restart(again, before).state.ledger == restart(record, seen()).state.ledger
    assert restart(again, before, offline).state == state


@pytest.mark.parametrize("before", [seen(), None])
def test_a_new_pod_gets_no_cpu_that_is_offline(before: Machine | None) -> None:
    record = with_owner()
    now = seen(CPUSet([4, 5]))
    known = known_machine(now, None if before is None else written(before))
    planner = Planner(known.machine, STATIC, rules=SOUND)
    state = restart(record, before, CPUSet([4, 5])).state
    new = parse(json.dumps(manifest("new", "2"))).pod
    after = settle(state, decide(planner.node, state, new))
    assert after.ledger.cpus_of("uid-new", "c0") == CPUSet([6, 7])
    huge = parse(json.dumps(manifest("huge", "4"))).pod
    assert not decide(planner.node, state, huge).admitted
    # It came back, and where it is may not be known: then it is shared, and nobody's own.
    back = replace(state, offline=CPUSet())
    taken = decide(planner.node, back, parse(json.dumps(manifest("four", "4"))).pod)
    assert taken.admitted == (before is not None)


def test_a_cpu_that_was_offline_from_the_first_start_joins_the_pool() -> None:
    gone = CPUSet([3])
    first = restart(Record(), None, gone)
    record = recorded(first)
    before = known_machine(seen(gone), None).machine
    found = restart(record, before)
    assert found.state.ledger.default == CPUSet(range(CPUS))
    assert found.report == ["CPUs 3 were offline so far, and are in the shared pool now"]
    # The agent that died before it wrote down the machine says it once more, and does it once.
    again = restart(recorded(found), before)
    assert (again.state.ledger, again.report) == (found.state.ledger, [])
    # Nobody knew that it was there: the kubelet's answer.
    with pytest.raises(MismatchError, match="doesn't match with CPUs in state"):
        restart(record, None)


def test_a_machine_that_has_lost_a_cpu_is_still_refused() -> None:
    record = with_owner()
    assert record.node is not None
    more = CPUSet([8])
    node = replace(
        record.node, default=record.node.default | more, machine=record.node.machine | more
    )
    with pytest.raises(MismatchError, match='"0-7" doesn\'t match with CPUs in state "0-8"'):
        restart(replace(record, node=node), seen(), CPUSet([3]))


def test_an_owner_of_a_cpu_without_a_place_is_told_by_its_cpus() -> None:
    found = restart(with_owner(), None, CPUSet([2, 3]))
    record, workload = found.active["uid-db"]
    pod = AdmittedPod(workload, record)
    (container,) = workload.pod.containers
    assert pod.exclusive_cpus(found.state.ledger, container) == CPUSet([2, 3])
