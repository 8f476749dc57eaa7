"""``pinfold run --near`` and the devices of ``pinfold topology``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from pinfold.adapters.machines.capture import capture_entries
from pinfold.adapters.machines.capture_file import pack
from pinfold.adapters.machines.source import open_machine
from pinfold.admission.admission import decide_near
from pinfold.cli.commands.run import near_locality, run
from pinfold.cli.commands.topology import topology
from pinfold.cli.output import InputError
from pinfold.config.agent import DEFAULT_NODE
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.locality import Localities
from pinfold.core.machine.machine import Machine, PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.manifest.one_command import Wishes, run_manifest
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.near_wishes import NearWish, wishes_of
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Planner
from pinfold.render.machine_map import device_rows
from tests.roots import ROOT
from tests.scenes.sysfs_trees import memory_tree, server


def pinned(*arguments: str) -> Result:
    return CliRunner().invoke(run, ["--socket", "no/s.sock", *arguments, "--", "true"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--near", "eth0"), "say how many, a whole number: --cpus 2"),
        (("--near", "eth0", "--cpus", "500m"), "say how many, a whole number: --cpus 2"),
        (("--near", "eth0,,eth1", "--cpus", "1"), "--near: '' is no device name"),
        (("--near-required", "--cpus", "1"), "--near-required needs --near"),
        (("--near", "no-such-device-here", "--cpus", "1"), "'no-such-device-here'"),
    ],
)
def test_wishes_that_are_none(arguments: tuple[str, ...], problem: str) -> None:
    done = pinned(*arguments)
    assert done.exit_code == 2
    assert problem in done.output


def wishes(*near: str, required: bool = False, cpus: str = "2") -> Wishes:
    return Wishes("p", ("true",), cpus=cpus, near=near, near_required=required)


def test_the_manifest_has_the_wish() -> None:
    for required in (False, True):
        manifest = run_manifest(
            replace(wishes("eth0", "/dev/sda", required=required), memory="1Gi")
        )
        found = wishes_of(workload_from_api(manifest).pod)
        assert found is not None
        assert found.pod == NearWish(("eth0", "/dev/sda"), required=required)
    assert wishes_of(workload_from_api(run_manifest(wishes())).pod) is None


def two_sockets() -> Machine:
    """Two sockets of four CPUs; a card at the second, and a disk that is nowhere."""
    card = PCIFunction("0000:b1:00.0", "0x020000", 1, CPUSet(range(4, 8)), ("eth1",))
    disk = PCIFunction("0000:01:00.0", "0x010802", -1, CPUSet(range(8)), ("nvme0n1",))
    return replace(parse_short_form("2s4c"), pci=(disk, card))


def test_where_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert near_locality(wishes("nvme0n1"), two_sockets()) is None
    assert "--near has no effect: nvme0n1: the firmware does not say" in capsys.readouterr().err
    with pytest.raises(InputError, match="--near-required: nvme0n1: the firmware does not say"):
        near_locality(wishes("nvme0n1", required=True), two_sockets())


@pytest.mark.parametrize(
    ("taken", "required", "given"),
    [
        ("", False, "4-5"),
        ("4,6", False, "5,7"),
        ("4-6", False, "1,7"),
        ("", True, "4-5"),
        ("4-6", True, None),
    ],
)
def test_without_an_agent_near_cpus_come_first(
    taken: str, given: str | None, *, required: bool
) -> None:
    planner = Planner(two_sockets(), DEFAULT_NODE, rules=SOUND)
    wish = wishes("eth1", required=required)
    near = near_locality(wish, planner.machine)
    assert near is not None
    pod = workload_from_api(run_manifest(wish)).pod
    state = planner.empty_with(CPUSet.parse(taken))
    decision = decide_near(planner.node, state, pod, near.cpus, required=required)
    assert decision.admitted == (given is not None)
    if given is not None:
        assert str(decision.allocations["main"].cpus) == given


def some_device() -> str:
    """A device of this machine whose place is known."""
    found = open_machine(None)
    localities = Localities.of(found)
    for one in found.pci:
        if localities.resolve(one.address).nodes is not None:
            return one.address
    return pytest.skip("no PCI device here whose NUMA node is known")


def test_a_command_runs_near_a_device_of_this_machine(tmp_path: Path) -> None:
    if len(open_machine(None).online) < 2:
        pytest.skip("needs two CPUs")
    device = some_device()
    near = Localities.of(open_machine(None)).resolve(device).cpus
    if not near & CPUSet(os.sched_getaffinity(0)):
        pytest.skip("none of the CPUs near it may be used")
    arguments = ["run", f"--socket={tmp_path / 's.sock'}", "--near", device, "--cpus", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", *arguments, "--", "sh", "-c", "echo $PINFOLD_CPUS"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PINFOLD_RUN_DIR": str(tmp_path / "list")},
    )
    assert done.returncode == 0, done.stderr
    assert CPUSet.parse(done.stdout) <= near
    assert "are not near" not in done.stderr


@pytest.fixture
def captured(tmp_path: Path) -> str:
    """A capture of :func:`server`."""
    _, entries = capture_entries(memory_tree(*server()))
    path = tmp_path / "test.tar"
    path.write_bytes(pack(entries, "test", ".tar"))
    return str(path)


def shown(machine: str, *arguments: str) -> str:
    done = CliRunner().invoke(topology, ["--machine", machine, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


DEVICES = """\
PCI devices
node 0  network  eth0/bond0/bond0.7, eth1
        storage  nvme1n1/nvme1/md0
        display  card0
node 1  network  eth2/mlx5_0/bond0/...  and 1 virtual function
        storage  nvme0/md0/nvme0n1

"""


def test_topology_lists_devices_by_node(captured: str) -> None:
    text = shown(captured, "--no-color")
    assert DEVICES in text
    picture = shown(captured, "-o", "svg")
    assert "PCI devices" in picture
    assert "eth0/bond0/bond0.7" in picture
    for place in ("node 0 network", "node 0 storage", "node 0 display", "node 1 network"):
        assert f">{place}<" in picture, "spaces that align text are nothing in a picture"


def test_topology_json_has_the_names(captured: str) -> None:
    rows = {row["address"]: row for row in json.loads(shown(captured, "-o", "json"))["pci"]}
    assert rows["0000:b2:00.0"] == {
        "address": "0000:b2:00.0",
        "class": "0x010802",
        "numa_node": 1,
        "local_cpus": "2-3",
        "names": ["nvme0", "md0", "nvme0n1"],
    }
    assert rows["0000:b1:02.0"]["physical_function"] == "0000:b1:00.0"


def test_hundreds_of_functions_take_few_lines() -> None:
    many = [
        PCIFunction(
            f"0000:{at:02x}:00.0",
            "0x020000",
            at % 2,
            None,
            (f"eth{at}",) if at < 100 else (),
            "0000:00:00.0" if at >= 200 else None,
        )
        for at in range(250)
    ]
    rows = device_rows(replace(parse_short_form("2s4c"), pci=tuple(many)))
    assert [(row.place, row.kind, len(row.names), row.virtual) for row in rows] == [
        ("node 0", "network", 100, 25),
        ("node 1", "network", 100, 25),
    ]
    assert rows[0].names[:2] == ("eth0", "eth2")


def test_devices_that_are_nowhere_or_in_several_places() -> None:
    half = PCIFunction("0000:02:00.0", "0x030000", -1, CPUSet(range(3, 5)))
    found = two_sockets()
    rows = device_rows(replace(found, pci=(*found.pci, half)))
    assert [(row.place, row.kind, row.names) for row in rows] == [
        ("nodes 0,1", "display", ("0000:02:00.0",)),
        ("node 1", "network", ("eth1",)),
        ("unknown", "storage", ("nvme0n1",)),
    ]
