"""What cgroups of pods are set to beside CPUs and limits: memory protection, bursts, processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.cgroup.limits import (
    Setting,
    WrittenFiles,
    apply,
    other,
    v1_settings,
    v2_settings,
)
from pinfold.adapters.cgroup.sums import add_up, is_protecting
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.memory.protection import Protection
from pinfold.ports.cgroups import Limits, OtherLimit, Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.cgroup_kernel import Kernel, a_kernel
from tests.scenes.contract_node import OWNER, SHARED

kernel = pytest.fixture(a_kernel)
MIB = 1 << 20


def test_what_a_cgroup_may_do_besides() -> None:
    """Protected and throttled memory, saved quota, processes, I/O: on cgroup v1 what there is."""
    limits = Limits(
        cpu_quota=50_000,
        cpu_burst=70_000,
        protection=Protection(min=1 << 20, high=2 << 20),
        pids=99,
        io_weight=500,
    )
    v2 = {setting.file: setting.value for setting in v2_settings(limits) if setting.wished}
    assert v2 == {
        "cpu.max": "50000 100000",
        "cpu.max.burst": "50000",  # the kernel takes no more than the quota
        "memory.min": "1048576",
        "memory.high": "2097152",
        "pids.max": "99",
        "io.weight": "500",
    }
    v1 = {setting.file: setting for setting in v1_settings(limits) if setting.wished}
    assert (v1["cpu.cfs_burst_us"].value, v1["pids.max"].value) == ("50000", "99")
    assert {file for file, one in v1.items() if one.needs == "cgroup v2"} == {
        "memory.min",
        "memory.high",
        "io.weight",
    }
    uncapped = replace(limits, cpu_quota=-1)
    assert not any("burst" in one.file and one.wished for one in v2_settings(uncapped))


def test_what_the_kernel_makes_of_a_value_is_told(tmp_path: Path) -> None:
    """A file that rounds to pages is as wished; one that says something else is not in force."""
    for file, has, wish, found in (
        ("pids.max", "9", "9", []),
        ("io.weight", "default 9\n8:0 20", "9", []),
        ("memory.min", "4096", "5000", []),
        ("memory.low", "0", "5000", ["memory.low 5000 is not in force: it is 0"]),
    ):
        # A file that says always the same, whatever is written into it.
        fixed = tmp_path / f"fixed-{file}"
        fixed.write_text(has)
        assert other(tmp_path, fixed.name, wish) == [one.replace(file, fixed.name) for one in found]
    absent = Setting("cpu", "cpu.max.burst", "5", wished=True, needs="Linux 5.14")
    assert apply([absent], lambda _: tmp_path) == [
        "cpu.max.burst 5 is not in force: needs Linux 5.14"
    ]
    assert apply([absent], lambda _: None) == [
        "cpu.max.burst 5 is not in force: no cpu controller here"
    ]
    nowhere = Setting("", "io.weight", "5", wished=True, needs="cgroup v2")
    assert apply([nowhere], lambda _: None) == ["io.weight 5 is not in force: needs cgroup v2"]


def test_those_above_are_protected_as_much_as_their_pods(tmp_path: Path) -> None:
    """The tree's own cgroup and its sides have the sum, both files apart; what is above is told."""
    base = tmp_path / "above" / "pinfold"
    sides = [base / "shared", base / "exclusive"]
    for folder, low in ((tmp_path / "above", 0), (base, 0), (sides[0], 7), (sides[1], 0)):
        folder.mkdir()
        (folder / "memory.min").write_text("0\n")
        (folder / "memory.low").write_text(f"{low}\n")
    assert not is_protecting(base)
    for side, pod, least, low in ((0, "pod-a", 0, 30), (1, "pod-b", 100, 0), (1, "pod-c", 11, 4)):
        (sides[side] / pod).mkdir()
        (sides[side] / pod / "memory.min").write_text(f"{least}\n")
        (sides[side] / pod / "memory.low").write_text(f"{low}\n")
    above = tmp_path / "above"
    assert add_up(base, sides, tmp_path) == []
    wished = Limits(protection=Protection(low=4, min=11))
    assert add_up(base, [*sides, base / "idle"], tmp_path, wished) == [
        f"memory.min is in force for 0 bytes of 111: {above}/memory.min is 0",
        f"memory.low is in force for 0 bytes of 34: {above}/memory.low is 0",
    ]

    def has(folder: Path) -> list[str]:
        return [(folder / file).read_text().strip() for file in ("memory.min", "memory.low")]

    assert [has(one) for one in (*sides, base)] == [["0", "30"], ["111", "4"], ["111", "34"]]
    assert is_protecting(base)
    assert add_up(base, sides, above) == []


@pytest.mark.parametrize(("file", "most"), [("io.weight", 10_000), ("io.bfq.weight", 1000)])
def test_sides_weigh_what_their_pods_do_together(tmp_path: Path, file: str, most: int) -> None:
    """So a pod compares with those of another side as it does with its siblings."""
    sides = [tmp_path / name for name in ("shared", "exclusive", "idle")]
    for side in sides:
        side.mkdir()

    def pods(side: Path, *weights: int) -> None:
        for number, weight in enumerate(weights):
            pod = side / f"pod-{side.name}-{number}"
            pod.mkdir(exist_ok=True)
            (pod / file).write_text(f"default {weight}\n8:0 7\n")

    def has() -> list[int]:
        for side in sides:
            (side / file).write_text("")  # a kernel's file has no old end behind a new value
        add_up(tmp_path, [*sides, tmp_path / "none"], tmp_path)
        return [int((side / file).read_text() or 100) for side in sides]

    pods(sides[0], 100, 100, 100)
    assert has() == [100, 100, 100]
    pods(sides[1], 500)
    pods(sides[2], 10, 10)
    assert has() == [300, 500, 20]
    pods(sides[1], *[500] * 40)
    assert has() == [round(300 * most / 20_000), most, round(20 * most / 20_000)]
    for pod in sides[1].glob("pod-*"):
        (pod / file).write_text("default 100\n")
    pods(sides[2], 100, 100)
    assert has() == [100, 100, 100]


QUIET = Placement()
WISHED = Placement(
    limits=Limits(
        cpu_quota=50_000,
        cpu_burst=20_000,
        protection=Protection(min=4 * MIB, low=0, high=32 * MIB),
    ),
    pod_limits=Limits(
        cpu_quota=50_000, cpu_burst=20_000, protection=Protection(min=8 * MIB), pids=50
    ),
)
FEWER = replace(
    WISHED,
    limits=replace(WISHED.limits, cpu_quota=10_000, cpu_burst=10_000),
    pod_limits=replace(WISHED.pod_limits, cpu_quota=10_000, cpu_burst=10_000, pids=None),
)


def test_the_kernel_has_what_is_wished_or_it_is_said(kernel: Kernel) -> None:
    """Also less than before: what may be saved is never more than a quota on the way."""

    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        burst = (
            "cpu.max.burst" if (v2 := isinstance(kernel.cgroups, CgroupsV2)) else "cpu.cfs_burst_us"
        )

        def has(file: str) -> list[str]:
            """What the container and its pod have."""
            (main,) = (one for one in kernel.files(file) if one.parent.name == "main")
            return [one.read_text().strip() for one in (main, main.parents[1] / file)]

        note = await kernel.cgroups.place(SHARED, WISHED)
        assert "burst" in note or has(burst) == ["20000", "20000"]
        assert "pids" in note or has("pids.max") == ["max", "50"]
        note = await kernel.cgroups.place(SHARED, FEWER)
        assert "burst" in note or has(burst) == ["10000", "10000"]
        assert "pids" in note or has("pids.max") == ["max", "max"]
        if not v2:
            assert f"memory.min {4 * MIB} is not in force: needs cgroup v2" in note
            return
        assert has("memory.min") == [str(4 * MIB), str(8 * MIB)]
        assert has("memory.high") == [str(32 * MIB), "max"]
        await kernel.cgroups.place(OWNER, replace(WISHED, cpus=kernel.cpus))
        above = [kernel.tree / one / "memory.min" for one in ("", "shared", "exclusive")]
        assert [int(one.read_text()) // MIB for one in above] == [16, 8, 8]
        await kernel.cgroups.remove(OWNER)
        assert [int(one.read_text()) // MIB for one in above] == [8, 8, 0]
        await kernel.cgroups.place(SHARED, QUIET)
        assert [int(one.read_text()) // MIB for one in above] == [0, 0, 0]
        assert has("memory.high") == ["max", "max"]

    asyncio.run(scenario())


def test_limits_that_somebody_else_writes_are_found(kernel: Kernel) -> None:
    """Those of a container and of its pod; not those that are written by placing it again."""
    limits = kernel.cgroups.limits

    def shares() -> Path:
        name = "cpu.weight" if isinstance(kernel.cgroups, CgroupsV2) else "cpu.shares"
        return next(one for one in kernel.files(name) if one.parent.name == "main")

    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        wished = replace(QUIET, limits=Limits(cpu_shares=512), pod_limits=Limits(cpu_shares=2048))
        await kernel.cgroups.place(SHARED, wished)
        assert limits.look() == {}
        file, whole = shares(), shares().parents[1] / shares().name
        told = {one.folder: one for one in limits.written()}
        assert told[str(file.parent)].container == "main"
        assert told[str(file.parent)].files == {file.name: file.read_text().strip()}
        assert told[str(whole.parent)].container == ""
        before = {one: one.read_text().strip() for one in (file, whole)}
        file.write_text("7")
        whole.write_text("9")
        assert {key: set(found) for key, found in limits.look().items()} == {
            SHARED: {
                OtherLimit(str(file), before[file], "7"),
                OtherLimit(str(whole), before[whole], "9"),
            }
        }
        await kernel.cgroups.place(SHARED, wished)
        assert before == {one: one.read_text().strip() for one in (file, whole)}
        assert limits.look() == {}
        # On the other side of the tree it is in another folder, at least on cgroup v2.
        await kernel.cgroups.place(SHARED, replace(wished, cpus=kernel.cpus))
        assert limits.look() == {}
        shares().write_text("7")
        assert [one.found for one in limits.look()[SHARED]] == ["7"]
        await kernel.cgroups.remove(SHARED)
        assert limits.look() == {}
        assert list(limits.written()) == []

    asyncio.run(scenario())


def test_containers_take_turns_when_their_limits_are_compared(tmp_path: Path) -> None:
    """No more files are read than is said, and every one in its turn; a pod's own count once."""
    limits, keys = WrittenFiles(), [ContainerKey("a", f"c{number}") for number in range(5)]
    whole = [Setting("pids", "pids.max", "9", wished=True)]
    for key in keys:
        folder = tmp_path / key.name
        folder.mkdir()
        (tmp_path / "pids.max").write_text("max")
        (folder / "pids.max").write_text("max")
        own = [whole[0]._replace(value="5")]
        limits.apply(key, whole, {"pids": tmp_path}.get, own, {"pids": folder}.get)
    assert len(list(limits.written())) == 6
    for key in keys:
        (tmp_path / key.name / "pids.max").write_text("1")
    seen = [limits.look(4) for _ in range(3)]
    assert [[key.name for key in found] for found in seen] == [
        ["c0", "c1"],
        ["c2", "c3"],
        ["c4", "c0"],
    ]
    # What the pod has is compared as long as one container of it is there.
    for key in keys[1:]:
        limits.forget(key)
    (tmp_path / "pids.max").write_text("2")
    assert [one.found for one in limits.look()[keys[0]]] == ["1", "2"]
    limits.forget(keys[0])
    assert limits.look() == {}
