"""What stands beside a shield: others' cgroups, partitions, interrupts, the kernel's threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.shield import (
    Place,
    ShieldError,
    ShieldReport,
    foreign_threads,
    lower_shield,
    raise_shield,
    read_shield,
)
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.shield_scene import Scene, allowed, online, own_machine, scene_in

DEFAULT_IRQ = Path("/proc/irq/default_smp_affinity")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with scene_in(tmp_path) as made:
        yield made


def test_other_cgroups_of_version_1_are_named_and_left(scene: Scene) -> None:
    if scene.version != 1:
        pytest.skip("needs a cpuset hierarchy of cgroup v1")
    other, kept = scene.group("other", scene.cpus), scene.group("kept", scene.cpus)
    for folder in (other, kept):
        scene.start("sleep", "1000", folder=folder)
    empty = scene.group("empty", scene.cpus)
    report = scene.up(scene.last, keep=(f"/{kept.name}",))
    assert [left for left in report.left if "cpuset" in left] == [
        f"cpuset {other}: 1 task(s) that may run on CPUs {scene.last}"
    ]
    for folder in (other, kept, empty):
        assert CPUSet.parse((folder / "cpuset.cpus").read_text()) == scene.cpus


def test_other_cgroups_of_version_2_are_cut_and_restored(scene: Scene) -> None:
    if scene.version != 2:
        pytest.skip("needs cgroup v2")
    others = scene.cpus - scene.last
    plain, kept = scene.group("plain"), scene.group("kept")
    own = scene.group("own", scene.cpus)
    inside = scene.group("inside", scene.last)
    foreign = scene.group("foreign")
    folders = (plain, kept, own, inside, foreign)
    pids = {folder: scene.start("sleep", "1000", folder=folder) for folder in folders}
    os.sched_setaffinity(pids[own], scene.last)

    report = scene.up(scene.last, keep=(f"/{kept.name}",))

    assert [allowed(pids[folder]) for folder in folders] == [
        others,
        scene.cpus,
        others,
        scene.last,
        others,
    ]
    assert any(str(inside) in left for left in report.left)
    assert not any(str(plain) in left or str(kept) in left for left in report.left)
    low = CPUSet([min(scene.cpus)])
    (foreign / "cpuset.cpus").write_text(str(low))

    notes = scene.down().notes

    values = {folder: (folder / "cpuset.cpus").read_text().strip() for folder in folders}
    assert values == {
        plain: str(scene.cpus),  # the kernel takes no empty list while a task is there
        kept: "",
        own: str(scene.cpus),
        inside: str(scene.last),
        foreign: str(low),
    }
    assert [allowed(pids[folder]) for folder in folders] == [
        scene.cpus,
        scene.cpus,
        scene.last,
        scene.last,
        low,
    ]
    assert any(str(foreign) in note for note in notes)


def test_the_controller_is_switched_off_again(scene: Scene) -> None:
    if scene.version != 2:
        pytest.skip("needs cgroup v2")
    file = scene.place.root / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        file.write_text("-cpuset")
    if "cpuset" in file.read_text().split():
        pytest.skip("somebody else uses the cpuset controller")
    pid = scene.start("sleep", "1000", folder=scene.group("plain"))
    scene.up(scene.last)
    assert allowed(pid) == scene.cpus - scene.last
    assert "cpuset" in file.read_text().split()
    assert not scene.down().notes
    assert "cpuset" not in file.read_text().split()
    assert allowed(pid) == scene.cpus


def test_a_partition_is_not_broken(scene: Scene) -> None:
    """It owns its CPUs, so that the others get what is left; nothing left is refused."""
    if scene.version != 2 or len(scene.cpus) < 3:
        pytest.skip("needs cgroup v2 and three CPUs")
    low = CPUSet([min(scene.cpus)])
    owner = scene.group("owner", low)
    state = owner / "cpuset.cpus.partition"
    state.write_text("root")
    assert state.read_text() == "root\n"
    pid = scene.start("sleep", "1000")
    scene.up(scene.last)
    assert allowed(pid) == scene.cpus - scene.last - low
    assert state.read_text() == "root\n"
    scene.down()
    with pytest.raises(ShieldError, match="partitions own"):
        scene.up(scene.cpus - low)
    assert allowed(pid) == scene.cpus - low
    assert read_shield(scene.record) is None


def interrupts() -> dict[str, str]:
    files = (*Path("/proc/irq").glob("[0-9]*/smp_affinity_list"), DEFAULT_IRQ)
    return {str(file): file.read_text().strip() for file in files}


def test_interrupts_go_and_come_back(scene: Scene) -> None:
    before = interrupts()
    report = scene.up(scene.last, irqs=True)
    during = interrupts()
    fixed = {f"/proc/irq/{number}/smp_affinity_list" for number in report.irqs_fixed}
    moved = {
        file
        for file, text in before.items()
        if not file.endswith("default_smp_affinity") and CPUSet.parse(text) & scene.last
    } - fixed
    assert all(CPUSet.parse(during[file]).isdisjoint(scene.last) for file in moved)
    assert report.irqs_moved == len(moved)
    assert all(during[file] == before[file] for file in fixed)
    assert CPUSet.parse_hex(DEFAULT_IRQ.read_text()).isdisjoint(scene.last)
    scene.up(scene.last)
    assert interrupts() == before
    scene.up(scene.last, irqs=True)
    assert interrupts() == during
    scene.down()
    assert interrupts() == before


def test_the_whole_machine(tmp_path: Path) -> None:
    """The real root cgroup, with the kernel's threads, for a moment."""
    last = CPUSet([max(online())])
    record, name = tmp_path / "shield.json", f"pinfold-test-{secrets.token_hex(4)}"
    daemon = 2  # kthreadd, which no cgroup takes
    if Path(f"/proc/{daemon}/comm").read_text().strip() != "kthreadd":
        pytest.skip("kernel threads are not seen from inside of a pid namespace")
    before = allowed(daemon)

    async def scenario(machine: Place) -> ShieldReport:
        try:
            report = await raise_shield(last, record=record, name=name, place=machine)
            shield = read_shield(record)
            assert shield is not None
            # Kernel threads born just now come with the affinity that the kernel gives them.
            assert len(foreign_threads(shield)) <= 3 or report.left
            assert allowed(daemon).isdisjoint(last)
            assert allowed(os.getpid()).isdisjoint(last)
            return report
        finally:
            await lower_shield(record=record, name=name, place=machine)

    with own_machine() as machine:
        report = asyncio.run(scenario(machine))
    assert report.bound > 0
    assert report.moved >= 3
    assert allowed(daemon) == before
    assert not (machine.root / name).exists()
