"""Which cpusets are gates, and what is on record of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.runtime.gate_record import GateFile, UsedGate
from pinfold.adapters.cgroup.runtime.gates import gate_of
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.cgroup_mounts import CgroupMount
from pinfold.linux.processes import boot_id
from pinfold.ports.errors import PortError

MACHINE = CPUSet(range(8))
BURSTABLE = Path("/kubepods/burstable")
WHOLE = CgroupMount(Path("/"), "/", writable=True)


@pytest.mark.parametrize(
    ("folder", "gate"),
    [
        ("/kubepods/burstable/pod1/abc", "/kubepods/burstable"),
        ("/kubepods/besteffort/pod1/abc/inner", "/kubepods/besteffort"),
        ("/kubepods/pod1/abc", "/kubepods/pod1"),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/c-abc.scope",
            "/kubepods.slice/kubepods-burstable.slice",
        ),
        (
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope",
            "/kubepods.slice/kubepods-pod1.slice",
        ),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/p.slice/c",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice",
        ),
        ("/kubelet/kubepods/pod1/abc", "/kubelet/kubepods/pod1"),
        # A kubelet in a container of a kubelet.
        (
            "/kubepods/burstable/pod1/abc/kubepods/pod2/def",
            "/kubepods/burstable/pod1/abc/kubepods/pod2",
        ),
        ("/kubepods/pod1", None),
        ("/kubepods/burstable", None),
        ("/kubepods/other/abc", None),
        ("/kubepods.slice/burstable/pod1/abc", None),
        ("/pinfold/pod1/abc", None),
        ("/system.slice/kubepods-burstable/abc/d", None),
    ],
)
def test_the_gate_of_a_container(folder: str, gate: str | None) -> None:
    assert gate_of(Path(folder)) == (None if gate is None else Path(gate))


def test_the_record_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "gates.json"
    record = GateFile(file, WHOLE)
    assert not record.load()
    used = {
        BURSTABLE: UsedGate(CPUSet(), (MACHINE, CPUSet([3]))),
        Path("/kubepods/pod1"): UsedGate(CPUSet([1, 2])),
    }
    record.save(used, sync=True)
    assert record.load() == used
    text = file.read_text()
    file.write_text(text.replace('"boot": "', '"boot": "another'))
    assert not record.load(), "cgroups do not outlive the machine's start"
    for damaged in ("", "[]", text.replace('""', '"x"'), text.replace("gates", "none")):
        file.write_text(damaged)
        with pytest.raises(PortError, match="no record of a kubelet's cpusets"):
            record.load()
    record.save({}, sync=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PortError, match="nowhere"):
        GateFile(tmp_path / "nowhere" / "gates.json", WHOLE).save(used, sync=True)


def test_what_a_power_cut_has_left_of_the_record_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "gates.json"
    file.touch()
    os.utime(file, (0, 0))
    assert not GateFile(file, WHOLE).load()


def test_a_record_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "gates.json"
    file.write_text(f'{{"version": 1, "boot": "{boot_id()}", "gates": {{"/x": "1"}}}}')
    with pytest.raises(PortError, match=r"gates.json: version 1 of .* \(use the pinfold that"):
        GateFile(file, WHOLE).load()


def test_the_record_is_of_the_hierarchy_wherever_that_is_mounted(tmp_path: Path) -> None:
    file = tmp_path / "gates.json"
    used = UsedGate(CPUSet([1, 2]), (CPUSet([1]),))
    pod = Path("/kubepods/pod1")
    on_the_host = CgroupMount(Path("/sys/fs/cgroup"), "/", writable=True)
    GateFile(file, on_the_host).save(
        {on_the_host.point / one.relative_to("/"): used for one in (BURSTABLE, pod)}, sync=True
    )
    inside = CgroupMount(Path("/host/cgroup"), "/kubepods/burstable", writable=True)
    record = GateFile(file, inside)
    assert record.load() == {inside.point: used}
    record.save({}, sync=True)
    assert GateFile(file, WHOLE).load() == {pod: used}, "what is not seen is not forgotten"
