"""The doctor's findings and repairs, and writing files so that none is ever lost."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.statefile.files import (
    MAX_STATE_BYTES,
    StateFileError,
    read_state_file,
    replace_state_file,
)
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.kubelet.versions import V1_34, V1_35
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.memory import Block, NodeMemory, default_machine_state
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.conversion import convert
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint, PodDevicesEntry
from pinfold.state.doctor import examine
from pinfold.state.findings import Circumstances, Finding, Severity
from pinfold.state.layouts import Layout
from pinfold.state.ledger import Bounds, Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_startup import (
    expected_machine_state,
    start_memory_policy,
)
from pinfold.state.repair import RepairError, RepairRequest, repair
from pinfold.state.restore import RestoreError, restore, to_checkpoint, to_ledger
from pinfold.state.startup import start_policy
from pinfold.state.state_file import Kind, StateFile, UnusableFileError

TOPOLOGY = CPUTopology.from_rows((cpu, cpu & ~1, 0, 0, 0) for cpu in range(8))
LEDGER = Ledger(
    "static",
    CPUSet.parse("0,5-7"),
    {"pod-a": {"app": CPUSet.parse("1-2")}, "pod-b": {"init": CPUSet.parse("3-4")}},
)
GOOD = StateFile.read(to_checkpoint(LEDGER).encode())


def findings(state: StateFile, node: Circumstances | None = None) -> list[tuple[str, str]]:
    return [(f.severity.value, f.what) for f in examine(state, node or Circumstances())]


def cpu_file(ledger: Ledger) -> StateFile:
    return StateFile.read(to_checkpoint(ledger).encode())


def test_a_good_file_has_no_findings() -> None:
    node = Circumstances(
        topology=TOPOLOGY, reserved=CPUSet([0]), policy="static", pods=frozenset(["pod-a", "pod-b"])
    )
    assert findings(GOOD) == findings(GOOD, node) == []


def test_a_wrong_checksum_is_mended() -> None:
    broken = StateFile.read(GOOD.file.replace(b'"5-7', b'"6-7').replace(b"0,5-7", b"0,6-7"))
    node = Circumstances(path="/x/cpu_manager_state")
    (finding,) = examine(broken, node)
    assert finding.severity is Severity.ERROR
    assert (
        "could not restore state from checkpoint: json: cannot unmarshal object "
        "into Go struct field CPUManagerCheckpointV1.entries of type string, please drain"
    ) in finding.what
    assert "the checksum in the file is" in finding.why
    (older,) = examine(broken, replace(node, version=V1_34))
    assert "checkpoint is corrupted, please drain" in older.what
    assert finding.fix == "pinfold state repair /x/cpu_manager_state"
    mended = repair(broken, RepairRequest(machine=TOPOLOGY.cpus, reserved=CPUSet([0])))
    assert to_ledger_of(mended.file).default == CPUSet.parse("0,5-7")
    assert findings(StateFile.read(mended.file)) == []


def to_ledger_of(file: bytes) -> Ledger:
    return restore(file, "static")


def test_a_missing_checksum_is_a_warning() -> None:
    file = GOOD.file[: GOOD.file.index(b',"checksum"')] + b"}"
    assert findings(StateFile.read(file)) == [("warning", "the file has no checksum")]
    assert repair(StateFile.read(file), RepairRequest()).file == GOOD.file


def test_the_policy_was_changed() -> None:
    (finding,) = examine(GOOD, Circumstances(policy="none"))
    assert 'configured policy "none" differs from state checkpoint policy "static"' in finding.what
    assert "--policy none" in finding.fix
    mended = repair(GOOD, RepairRequest(policy="none"))
    assert mended.file == b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    assert any("pod-a" in change for change in mended.changes)


def test_cpus_went_offline() -> None:
    small = CPUTopology.from_rows((cpu, cpu & ~1, 0, 0, 0) for cpu in (0, 1, 3, 4, 6, 7))
    node = Circumstances(topology=small, machine="a b", reserved=CPUSet([0]))
    (finding,) = examine(GOOD, node)
    assert finding.what.startswith('current set of available CPUs "0-1,3-4,6-7" doesn\'t match')
    assert "--machine 'a b' --reserved-cpus 0" in finding.fix
    mended = repair(GOOD, RepairRequest(machine=small.cpus, reserved=CPUSet([0])))
    assert mended.changes == (
        "pod pod-a, container app: lost CPUs 2, 1 of 2 left",
        "shared pool: 0,5-7 -> 0,6-7",
    )
    assert findings(StateFile.read(mended.file), node) == []


def test_the_reservation_grew_into_a_container() -> None:
    node = Circumstances(reserved=CPUSet.parse("0-3"))
    whats = findings(GOOD, node)
    assert ("error", 'not all reserved cpus: "0-3" are present in defaultCpuSet: "0,5-7"') in whats
    assert ("warning", "reserved CPUs 1-2 are assigned") in whats
    mended = repair(GOOD, RepairRequest(reserved=CPUSet.parse("0-3")))
    assert "pod pod-a, container app: lost CPUs 1-2, none left, entry dropped" in mended.changes
    assert findings(StateFile.read(mended.file), node) == []


def test_vanished_pods() -> None:
    (finding,) = examine(GOOD, Circumstances(pods=frozenset(["pod-a"])))
    assert finding.what == "pod pod-b is gone and still holds CPUs 3-4"
    for request in (
        RepairRequest(drop_pods=frozenset(["pod-b"])),
        RepairRequest(keep_pods=frozenset(["pod-a"])),
    ):
        mended = to_ledger_of(repair(GOOD, request).file)
        assert mended.default == CPUSet.parse("0,3-7")
        assert list(mended.assignments) == ["pod-a"]


def test_two_pods_on_one_cpu() -> None:
    both = cpu_file(replace(LEDGER, assignments={**LEDGER.assignments, "z": {"c": CPUSet([2])}}))
    assert findings(both) == [("warning", "CPUs 2 belong to pods 'pod-a' and 'z'")]


@pytest.mark.parametrize("node", [Circumstances(), Circumstances(topology=TOPOLOGY)])
def test_a_cpu_of_the_pool_that_a_container_owns_stops_the_kubelet(node: Circumstances) -> None:
    both = cpu_file(replace(LEDGER, default=CPUSet.parse("0,2,5-7")))
    (finding,) = examine(both, node)
    assert finding.severity is Severity.ERROR
    assert finding.what.endswith('cpuset: "1-2" overlaps with default cpuset "0,2,5-7"')
    assert finding.why == "the kubelet exits at start (Policy start error)"


def test_strict_reservation() -> None:
    strict = cpu_file(replace(LEDGER, default=CPUSet.parse("5-7")))
    node = Circumstances(topology=TOPOLOGY, reserved=CPUSet([0]), strict_cpu_reservation=True)
    assert examine(strict, node) == []
    (finding,) = examine(GOOD, node)
    assert finding.what.startswith("some of strictly reserved cpus")
    request = RepairRequest(
        machine=TOPOLOGY.cpus, reserved=CPUSet([0]), strict_cpu_reservation=True
    )
    assert repair(GOOD, request).file == strict.file


def test_an_older_kubelet_cannot_read_v3() -> None:
    v3 = convert(GOOD, Layout.V3, {})
    assert examine(StateFile.read(v3.file), Circumstances()) == []
    (finding,) = examine(StateFile.read(v3.file), Circumstances(version=V1_35))
    assert "this one writes v2, and reads v1, v2" in finding.why
    assert "--to v2" in finding.fix
    assert convert(StateFile.read(v3.file), Layout.V2, {}).file == GOOD.file


def test_conversions_say_what_is_missing() -> None:
    with pytest.raises(RepairError, match=r'container "app" of pod "pod-a" .* --containers'):
        convert(GOOD, Layout.V1, {})
    ids = {"id1": ("pod-a", "app"), "id2": ("pod-b", "init")}
    v1 = StateFile.read(convert(GOOD, Layout.V1, ids).file)
    assert v1.layout == "v1"
    assert convert(v1, Layout.V2, ids).file == GOOD.file
    with pytest.raises(RepairError, match=r"containerID 'id1' not found .* --containers"):
        convert(v1, Layout.V2, {})
    with pytest.raises(RepairError, match="convert it first"):
        repair(v1, RepairRequest(drop_pods=frozenset(["pod-a"])))
    assert findings(v1) == [("note", "the file has the v1 layout (container ids instead of pods)")]


NODES = {0: NodeMemory(8 << 30), 1: NodeMemory(8 << 30)}


def memory_file(*pods: str) -> StateFile:
    blocks = (Block((0,), "memory", 1 << 30),)
    state = MemoryManagerCheckpoint(
        "Static", default_machine_state(NODES), {uid: {"c": blocks} for uid in pods}
    )
    machine = expected_machine_state(state, default_machine_state(NODES))
    return StateFile.read(replace(state, machine_state=machine).sealed().encode())


def test_memory_of_a_vanished_pod() -> None:
    state = memory_file("a", "b")
    assert findings(state) == []
    assert findings(state, Circumstances(pods=frozenset(["a"]))) == [
        ("warning", "pod b is gone and still holds 1073741824 bytes of memory")
    ]
    mended = repair(state, RepairRequest(drop_pods=frozenset(["b"])))
    assert mended.file == memory_file("a").file
    start_memory_policy(MemoryManagerCheckpoint.parse(mended.file), NODES)


def test_memory_machine_state_that_does_not_add_up() -> None:
    state = memory_file("a")
    document = state.document
    assert isinstance(document, MemoryManagerCheckpoint)
    wrong = StateFile.read(
        replace(document, machine_state=default_machine_state(NODES)).sealed().encode()
    )
    assert findings(wrong) == [
        ("error", "[memorymanager] the expected machine state is different from the real one")
    ]
    assert repair(wrong, RepairRequest()).file == state.file
    empty = StateFile.read(replace(document, machine_state={}).sealed().encode())
    assert "machine state can not be empty" in findings(empty)[0][1]
    with pytest.raises(RepairError, match="drop these pods"):
        repair(empty, RepairRequest())


def device_file(*pods: str) -> StateFile:
    entries = tuple(PodDevicesEntry(uid, "c", "x/y", {0: ("dev1",)}, b"") for uid in pods)
    return StateFile.read(DeviceManagerCheckpoint(entries or None, {}).sealed().encode())


def test_devices() -> None:
    both = device_file("a", "b")
    assert both.kind is Kind.DEVICES
    assert findings(both) == [("warning", "device dev1 of x/y belongs to two pods")]
    assert repair(both, RepairRequest(drop_pods=frozenset(["b"]))).file == device_file("a").file
    damaged = StateFile.read(both.file.replace(b"dev1", b"dev2"))
    assert any("checkpoint is corrupted" in what for _, what in findings(damaged))
    assert findings(StateFile.read(repair(damaged, RepairRequest()).file))[0][0] == "warning"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"a":1}', b"\x00\x01", b"3"])
def test_other_files_are_of_no_use(data: bytes) -> None:
    with pytest.raises(UnusableFileError):
        StateFile.read(data)


masks = st.integers(0, 255).map(CPUSet.from_mask)
pods = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xy"), masks))


@given(
    default=masks,
    assignments=pods,
    machine=masks.filter(bool),
    reserved=masks,
    strict=st.booleans(),
)
def test_a_kubelet_starts_on_what_was_repaired(
    default: CPUSet,
    assignments: dict[str, dict[str, CPUSet]],
    machine: CPUSet,
    reserved: CPUSet,
    *,
    strict: bool,
) -> None:
    reserved &= machine
    state = cpu_file(Ledger("static", default, assignments))
    mended = repair(
        state, RepairRequest(machine=machine, reserved=reserved, strict_cpu_reservation=strict)
    )
    again = repair(
        StateFile.read(mended.file),
        RepairRequest(machine=machine, reserved=reserved, strict_cpu_reservation=strict),
    )
    assert again.changes == (), "a repair leaves nothing to repair"
    ledger = restore(mended.file, "static")
    if ledger.assignments and not ledger.default:
        return  # every shared CPU is assigned: the kubelet refuses, and only a person can choose
    rows = ((cpu, cpu, 0, 0, 0) for cpu in machine)
    started = start_policy(
        ledger,
        CPUTopology.from_rows(rows),
        reserved,
        StaticPolicyOptions(strict_cpu_reservation=strict),
    )
    bounds = Bounds(machine, reserved, strict)
    bad = [text for text in replace(started, bounds=bounds).violations() if "belong" not in text]
    assert bad == []


@given(st.integers(0, len(GOOD.file) - 1), st.integers(0, 255))
def test_the_doctor_survives_any_damage(at: int, byte: int) -> None:
    damaged = GOOD.file[:at] + bytes([byte]) + GOOD.file[at + 1 :]
    try:
        state = StateFile.read(damaged)
    except UnusableFileError:
        return
    if damaged == GOOD.file:
        return
    told = examine(state, Circumstances(topology=TOPOLOGY, reserved=CPUSet([0])))
    try:
        same = restore(damaged, "static") == LEDGER
    except RestoreError:
        same = False
    assert same or told


# --- files ----------------------------------------------------------------------------------


class Faulty:
    """The system's calls, which fail, or are the last of a killed process, at the n-th of them."""

    CALLS = ("open", "fsync", "link", "rename", "replace", "unlink")

    def __init__(self, at: int, error: BaseException, *, halfway: bool) -> None:
        self.at, self.error, self.halfway, self.count = at, error, halfway, 0
        self.failed = ""

    def __enter__(self) -> Self:
        self._real = {name: getattr(os, name) for name in self.CALLS}
        for name in self.CALLS:
            setattr(os, name, partial(self._call, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _call(self, name: str, *args: Any, **more: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            self.failed = name
            if name == "fsync" and self.halfway and stat.S_ISREG(os.fstat(args[0]).st_mode):
                os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
            raise self.error
        if self.count > self.at and isinstance(self.error, KeyboardInterrupt):
            raise self.error  # a killed process does nothing more, not even cleaning up
        return self._real[name](*args, **more)


OLD, NEW = b"old content", b"new content, longer"


def operations(path: Path) -> int:
    with Faulty(10_000, OSError(), halfway=False) as faulty:
        replace_state_file(path, OLD, NEW)
    return faulty.count


@pytest.mark.parametrize("halfway", [False, True])
@pytest.mark.parametrize("kind", ["ENOSPC", "EROFS", "killed"])
def test_a_fault_at_any_step_loses_nothing(tmp_path: Path, kind: str, *, halfway: bool) -> None:
    path = tmp_path / "cpu_manager_state"
    path.write_bytes(OLD)
    steps = operations(path)
    assert steps >= 7
    for step in range(1, steps + 1):
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        path.write_bytes(OLD)
        error: BaseException = (
            KeyboardInterrupt() if kind == "killed" else OSError(getattr(errno, kind), kind)
        )
        refused = False
        faulty = Faulty(step, error, halfway=halfway)
        try:
            with faulty:
                replace_state_file(path, OLD, NEW)
        except (StateFileError, KeyboardInterrupt):
            refused = True
        content = path.read_bytes()
        assert content in (OLD, NEW), f"step {step} of {steps}"
        if not refused:
            assert content == NEW
        for backup in tmp_path.glob("*.bak-*"):
            assert backup.read_bytes() == OLD
        if content == NEW:
            assert list(tmp_path.glob("*.bak-*"))
        if kind != "killed":
            left = [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")]
            assert not left or faulty.failed == "unlink", f"{faulty.failed} left {left}"
        replace_state_file(path, content, NEW)
        left = [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")]
        assert not left, "what a killed process left stays for ever"


def test_backups_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"0")
    (tmp_path / "state.bak-1").write_bytes(b"kept")
    assert replace_state_file(path, b"0", b"1") == tmp_path / "state.bak-2"
    assert replace_state_file(path, b"1", b"2") == tmp_path / "state.bak-3"
    assert [(tmp_path / f"state.bak-{n}").read_bytes() for n in (1, 2, 3)] == [b"kept", b"0", b"1"]
    assert path.read_bytes() == b"2"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "state",
        "state.bak-1",
        "state.bak-2",
        "state.bak-3",
    ]


def test_mode_is_kept_and_links_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "real" / "state"
    path.parent.mkdir()
    path.write_bytes(OLD)
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    backup = replace_state_file(link, OLD, NEW)
    assert link.is_symlink()
    assert path.read_bytes() == NEW
    assert path.stat().st_mode & 0o777 == 0o640
    assert backup == path.with_name("state.bak-1")
    assert backup.stat().st_mode & 0o777 == 0o640


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"the kubelet wrote")
    with pytest.raises(StateFileError, match="stop the kubelet"):
        replace_state_file(path, OLD, NEW)
    with pytest.raises(StateFileError, match="cannot create"):
        replace_state_file(path, None, NEW)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
    assert path.read_bytes() == b"the kubelet wrote"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(OLD)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StateFileError, match="cannot write"):
            replace_state_file(path, OLD, NEW)
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == OLD


def test_files_that_are_no_state_files(tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    with pytest.raises(StateFileError, match=f"larger than {MAX_STATE_BYTES >> 20} MiB"):
        read_state_file(huge)
    os.mkfifo(tmp_path / "pipe")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, words in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
        (loop, "Too many levels"),
    ):
        with pytest.raises(StateFileError, match=words):
            read_state_file(path)
    with pytest.raises(StateFileError, match="symbolic links"):
        replace_state_file(loop, OLD, NEW)


def test_findings_are_values() -> None:
    finding = Finding(Severity.NOTE, "a", "b", "c", "d")
    assert finding == Finding(Severity.NOTE, "a", "b", "c", "d")
    assert isinstance(GOOD.document, CPUManagerCheckpoint)
    assert to_ledger(GOOD.document) == LEDGER
