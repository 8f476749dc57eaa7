"""What other kubelets make of a state file, and what a conversion makes of it for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.versions import DEFAULT_VERSION, V1_34, V1_35, V1_36, V1_37
from pinfold.core.memory.memory import Block, MemoryState, NodeMemory
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.acceptance import (
    KUBELETS,
    Acceptance,
    Kubelet,
    Outcome,
    acceptance,
    acceptances,
    written_by,
)
from pinfold.state.conversion import convert
from pinfold.state.cpu_manager_state import CheckpointError, CPUManagerCheckpoint
from pinfold.state.doctor import examine
from pinfold.state.findings import Circumstances, Severity
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE, Layout
from pinfold.state.ledger import Bounds, Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint, checkpoint_of
from pinfold.state.memory_restore import restore_memory
from pinfold.state.repair import RepairError, RepairRequest, repair
from pinfold.state.restore import RestoreError, restore, to_checkpoint
from pinfold.state.state_file import Kind, StateFile, ledger_of

NODE = Circumstances()
WITH_PODS, WITHOUT = Kubelet(V1_36, pod_level=True), Kubelet(V1_36)
LEDGER = Ledger(
    "static",
    CPUSet.parse("0,5-7"),
    {"whole": {"own": CPUSet([1])}, "other": {"c": CPUSet([4])}},
    bubbles={"whole": CPUSet([1, 2, 3])},
)
GIB = 1 << 30
MEMORY = MemoryState.of(
    {0: NodeMemory(8 * GIB), 1: NodeMemory(8 * GIB)},
    {
        "whole": {
            "own": (Block((0,), "memory", GIB),),
            "a": (Block((0,), "memory", 2 * GIB),),
            "b": (Block((0,), "memory", 2 * GIB),),
        },
        "other": {"c": (Block((1,), "memory", GIB),)},
    },
    {"whole": (Block((0,), "memory", 3 * GIB),)},
)


def cpu_file(layout: Layout, ledger: Ledger = LEDGER) -> StateFile:
    return StateFile.read(to_checkpoint(ledger, layout).encode())


def memory_file(layout: Layout, state: MemoryState = MEMORY) -> StateFile:
    return StateFile.read(checkpoint_of("Static", state, layout).encode())


def told(state: StateFile, kubelet: Kubelet) -> Acceptance:
    return acceptance(state, kubelet, NODE)


def outcomes(state: StateFile) -> list[tuple[str, str, bool]]:
    return [
        (str(one.kubelet), one.outcome.value, bool(one.lost)) for one in acceptances(state, NODE)
    ]


GATE = "PodLevelResourceManagers"


def test_every_kubelet_on_a_file_with_pod_entries() -> None:
    expected = [
        ("1.34", "refused", False),
        ("1.35", "refused", False),
        (f"1.36 with {GATE}=false", "refused", False),
        (f"1.36 with {GATE}=true", "accepted", False),
        # It is read, and the start of the policy misses what was the pods'.
        (f"1.37 with {GATE}=false", "refused", True),
        (f"1.37 with {GATE}=true", "migrated", False),
    ]
    assert outcomes(cpu_file(Layout.V3)) == expected
    assert outcomes(memory_file(Layout.V2)) == expected


def test_a_file_of_the_newest_is_taken_by_older_ones_without_its_pods() -> None:
    alone = replace(LEDGER, assignments={**LEDGER.assignments, "whole": {"own": CPUSet([1, 2, 3])}})
    for one in acceptances(cpu_file(Layout.V4, alone), NODE):
        keeps = one.kubelet == Kubelet(V1_37, pod_level=True)
        assert one.outcome is not Outcome.REFUSED
        assert one.lost == (() if keeps else ("whole",))
    # CPUs that no container has are nobody's then, and the policy does not start.
    for one in acceptances(cpu_file(Layout.V4), NODE):
        if one.kubelet == Kubelet(V1_37, pod_level=True):
            assert one.keeps_all
        else:
            assert one.error.startswith("current set of available CPUs")
            assert one.lost == ("whole",)


def test_even_without_pods_what_the_gate_writes_is_refused_without_it() -> None:
    plain = replace(LEDGER, bubbles={})
    assert told(cpu_file(Layout.V3, plain), WITHOUT).outcome is Outcome.REFUSED
    assert "CPUManagerCheckpointV1" in told(cpu_file(Layout.V3, plain), WITHOUT).error
    older = told(cpu_file(Layout.V3, plain), Kubelet(V1_35))
    assert "checkpoint is corrupted, please drain" in older.error


def test_a_checksum_of_zero_is_let_pass_by_some() -> None:
    zero = replace(checkpoint_of("Static", MemoryState.of({}, {})), checksum=0)
    file = StateFile.read(zero.encode())
    passing = {str(one.kubelet) for one in acceptances(file, NODE) if one.keeps_all}
    assert {"1.34", "1.35"}.isdisjoint(passing)
    assert len(passing) == 4


def test_what_an_upgrade_and_a_downgrade_do_one_after_the_other() -> None:
    plain = replace(LEDGER, bubbles={}, default=CPUSet.parse("0,2-3,5-7"))
    old = cpu_file(Layout.V2, plain)
    new = written_by(old, Kubelet(V1_37, pod_level=True), NODE)
    assert new.layout == "v4"
    back = written_by(new, Kubelet(V1_34), NODE)
    assert back.file == old.file
    with pytest.raises(RestoreError, match="please drain this node"):
        written_by(written_by(old, WITH_PODS, NODE), WITHOUT, NODE)


def test_the_oldest_layout_of_cpus_is_not_read_any_more() -> None:
    v1 = CPUManagerCheckpoint(Layout.V1, "static", "0,2-7", container_ids={"some-id": "1"}).sealed()
    file = StateFile.read(v1.encode())
    assert told(file, WITHOUT).outcome is Outcome.MIGRATED
    assert told(file, Kubelet(V1_37)).outcome is Outcome.REFUSED


def test_a_broken_file_of_the_newest_is_tried_in_no_other_layout() -> None:
    v4 = cpu_file(Layout.V4).file.replace(b'"dataChecksum":', b'"dataChecksum":1')
    assert "could not load v4 checkpoint: checkpoint is corrupted" in (
        told(StateFile.read(v4), Kubelet(V1_37)).error
    )
    # Older ones do not look there.
    alone = replace(LEDGER, bubbles={}, default=CPUSet.parse("0,2-3,5-7"))
    v4 = cpu_file(Layout.V4, alone).file.replace(b'"dataChecksum":', b'"dataChecksum":1')
    assert told(StateFile.read(v4), Kubelet(V1_35)).outcome is Outcome.MIGRATED


cpus = st.sets(st.integers(0, 15), max_size=16).map(CPUSet)


@st.composite
def sound_ledgers(draw: st.DrawFn) -> Ledger:
    """Ledgers of a machine of 16 CPUs as a kubelet leaves them."""
    ledger = Ledger.fresh("static", Bounds(CPUSet(range(16)), CPUSet([0])))
    for uid in draw(st.lists(st.sampled_from("abc"), unique=True)):
        free = ledger.default - CPUSet([0])
        mine = draw(cpus) & free
        parts = draw(st.lists(cpus, min_size=1, max_size=3))
        sets = {f"c{n}": part & mine for n, part in enumerate(parts) if part & mine}
        if not sets:
            continue
        if draw(st.booleans()):
            ledger = ledger.with_bubble(uid, mine, sets)
        else:
            ledger = ledger.with_pod(uid, sets)
    return replace(ledger, bounds=None)


kubelets = st.sampled_from(KUBELETS)


@given(sound_ledgers(), kubelets)
def test_a_kubelet_takes_what_it_has_written(ledger: Ledger, kubelet: Kubelet) -> None:
    form = CPU_STATE.at(kubelet.version, pod_level=kubelet.pod_level)
    if not form.has_pods and ledger.bubbles:
        ledger = replace(ledger, bubbles={})
    file = cpu_file(form.writes, ledger)
    one = told(file, kubelet)
    assert one.outcome is Outcome.ACCEPTED
    assert one.keeps_all
    assert written_by(file, kubelet, NODE).file == file.file


@given(sound_ledgers(), st.sampled_from([Layout.V2, Layout.V3, Layout.V4]), kubelets)
def test_what_is_converted_for_a_kubelet_is_taken_by_it(
    ledger: Ledger, layout: Layout, kubelet: Kubelet
) -> None:
    file = cpu_file(layout, replace(ledger, bubbles={}) if layout is Layout.V2 else ledger)
    form = CPU_STATE.at(kubelet.version, pod_level=kubelet.pod_level)
    before = ledger_of(file.document) if isinstance(file.document, CPUManagerCheckpoint) else None
    assert before is not None
    if before.bubbles and form.writes not in CPU_STATE.with_pods:
        with pytest.raises(RepairError, match="has no place for what pods have as a whole"):
            convert(file, form.writes, {})
    converted = StateFile.read(convert(file, form.writes, {}, drop_pod_entries=True).file)
    assert converted.layout == form.writes.value
    assert isinstance(converted.document, CPUManagerCheckpoint)
    after = ledger_of(converted.document)
    assert after.known == before.known
    if not before.bubbles or form.has_pods:
        assert told(converted, kubelet).outcome is Outcome.ACCEPTED
        assert after == before
    elif form.writes is Layout.V2:
        assert told(converted, kubelet).keeps_all
        assert after.assignments.keys() == before.assignments.keys() - before.bubbles.keys()


pieces = st.sampled_from(
    [
        '{"policyName":"static","defaultCpuSet":"0-3"',
        '{"policyName":"Static","machineState":{}',
        ',"entries":{"p":{"c":"1"}}',
        ',"entries":{"id":"1"}',
        ',"podEntries":{"p":{"cpuSet":"1-2"},"q":{"cpuSet":"1-"}}',
        ',"podEntries":{"p":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":1}]}}',
        ',"podEntries":null',
        ',"data":"{}"',
        ',"dataChecksum":7',
        ',"checksum":0',
        "}",
        "{",
        "null",
    ]
)


@given(st.lists(pieces | st.text(max_size=4), max_size=7).map("".join), kubelets)
def test_any_file_has_an_answer_of_any_kubelet(text: str, kubelet: Kubelet) -> None:
    """An answer, or the kubelet's words; nothing else."""
    form, path = kubelet.form(CPU_STATE), "/s"
    for read in (
        lambda: restore(text.encode("utf-8", "replace"), "static", path=path, form=form),
        lambda: restore_memory(
            text.encode("utf-8", "replace"), "Static", path=path, form=kubelet.form(MEMORY_STATE)
        ),
    ):
        words = "could not restore state from checkpoint: "
        try:
            read()
        except (RestoreError, CheckpointError) as error:
            words = str(error)
        assert words.startswith("could not restore state from checkpoint: ")


def test_conversions_of_memory() -> None:
    for layout in (Layout.V2, Layout.V3):
        file = memory_file(layout)
        for other in (Layout.V2, Layout.V3):
            assert convert(file, other, {}).file == memory_file(other).file
        with pytest.raises(RepairError, match=f"pod whole: its own {3 * GIB} bytes of memory"):
            convert(file, Layout.V1, {})
        dropped = StateFile.read(convert(file, Layout.V1, {}, drop_pod_entries=True).file)
        assert told(dropped, Kubelet(V1_34)).outcome is Outcome.ACCEPTED
        assert isinstance(dropped.document, MemoryManagerCheckpoint)
        assert set(dropped.document.entries or {}) == {"other"}
    with pytest.raises(RepairError, match="memory_manager_state has the layouts v1, v2, v3, and"):
        convert(memory_file(Layout.V2), Layout.V4, {})


def test_a_conversion_says_that_the_checksum_did_not_fit() -> None:
    damaged = StateFile.read(cpu_file(Layout.V3).file.replace(b'"0,5-7"', b'"0,5-8"'))
    changes = convert(damaged, Layout.V4, {}).changes
    assert any("did not fit the content" in change for change in changes)


# ------------------------------------------------------------------- what pods have as a whole


def warnings(state: StateFile, node: Circumstances = NODE) -> list[str]:
    found = examine(state, node)
    assert all(one.severity is Severity.WARNING for one in found)
    return [one.what for one in found]


def test_damaged_pod_entries_of_cpus() -> None:
    assert examine(cpu_file(Layout.V3), NODE) == []
    sick = Ledger(
        "static",
        CPUSet.parse("0,5-7"),
        {"whole": {"own": CPUSet([1, 4])}},
        bubbles={"whole": CPUSet([1, 2, 3]), "left": CPUSet([7])},
    )
    file = cpu_file(Layout.V3, sick)
    assert warnings(file) == [
        "pod 'whole', container 'own': CPUs 4 are not in the pod's 1-3",
        "CPUs 7 are assigned and in the shared pool too",
        "CPUs 7 are the pod's as a whole, and none of its containers has any",
    ]
    gone = warnings(file, replace(NODE, pods=frozenset(["whole"])))
    assert "pod left is gone and still holds CPUs 7" in gone
    mended = repair(file, RepairRequest(drop_pods=frozenset(["left"])))
    assert "pod whole, its own set 1-3: now 1-4" in mended.changes
    assert examine(StateFile.read(mended.file), NODE) == []


def test_damaged_pod_entries_of_memory() -> None:
    assert examine(memory_file(Layout.V2), NODE) == []
    sick = MemoryState(
        MEMORY.machine,
        {**MEMORY.assignments, "whole": {"own": (Block((1,), "memory", 4 * GIB),)}},
        {**MEMORY.bubbles, "left": (Block((1,), "memory", GIB),)},
    )
    assert warnings(memory_file(Layout.V2, sick)) == [
        f"{GIB} bytes of memory is the pod's as a whole, and none of its containers has any",
        "memory of NUMA nodes 1 is not in what the pod has on 0",
        f"{4 * GIB} bytes of memory, and the pod as a whole has {3 * GIB}",
    ]
    request = RepairRequest(drop_pods=frozenset(["left", "whole"]))
    mended = repair(memory_file(Layout.V2, sick), request)
    assert "pod left: dropped, its memory is free again" in mended.changes
    assert examine(StateFile.read(mended.file), NODE) == []


@pytest.mark.parametrize("file", [cpu_file(Layout.V4), memory_file(Layout.V3)])
def test_the_part_for_older_kubelets(file: StateFile) -> None:
    assert examine(file, NODE) == []
    checksum = b'"checksum":%d' % file.document.checksum
    damaged = [
        (file.file.replace(checksum, b'"checksum":7', 1), "has a checksum that does not fit"),
        (file.file.replace(b"tatic", b"tatix", 1), "says something else than data"),
        (file.file.replace(b'"c":', b'"d":', 1), "says something else than data"),
    ]
    for content, words in damaged:
        state = StateFile.read(content)
        assert warnings(state) == [f"the part for older kubelets {words}"]
        assert repair(state, RepairRequest()).file == file.file


def test_a_machine_that_lost_cpus_of_a_pod_as_a_whole() -> None:
    request = RepairRequest(machine=CPUSet.parse("0-2,4-7"), reserved=CPUSet([0]))
    repaired = repair(cpu_file(Layout.V3), request)
    assert "pod whole, its own set 1-3: lost CPUs 3, now 1-2" in repaired.changes
    assert examine(StateFile.read(repaired.file), NODE) == []


@pytest.mark.parametrize("table", [CPU_STATE, MEMORY_STATE])
def test_the_writer_of_a_layout_writes_it(table: object) -> None:
    forms = CPU_STATE if table is CPU_STATE else MEMORY_STATE
    for layout in forms.anything.layouts:
        version, pod_level = forms.writer(layout)
        writes = forms.at(version, pod_level=pod_level).writes
        # The oldest layout of CPUs is written by none that is known.
        assert writes is layout or (version, pod_level) == (DEFAULT_VERSION, False)


def test_files_with_one_layout() -> None:
    devices = StateFile.read(
        b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    )
    assert devices.kind is Kind.DEVICES
    assert {one.outcome for one in acceptances(devices, NODE)} == {Outcome.REFUSED}
    with pytest.raises(RepairError, match="has one layout only"):
        convert(devices, Layout.V2, {})
