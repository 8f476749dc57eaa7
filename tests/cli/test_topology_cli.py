"""``pinfold topology`` on machines of which a kubelet would see no CPU: only a plan refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.adapters.machines.source import open_machine
from pinfold.cli.commands.plan import plan
from pinfold.cli.commands.topology import topology
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.planning.planner import Planner
from tests.scenes.sysfs_trees import CPU, NODE

ONLINE = {f"{CPU}/online": "0-3\n", f"{CPU}/present": "0-3\n", "proc/meminfo": "MemTotal: 9 kB\n"}
NO_NODES = "no node directories: cAdvisor makes one node per physical_package_id, with that id"
NO_PACKAGES = ONLINE | {f"{CPU}/cpu{n}/topology/core_id": f"{n}\n" for n in range(4)}
WITHOUT_CPUS = {
    # As old kernels of the Cell and of s390 have it: no topology folder at all, or half of one.
    "bare": (ONLINE | {f"{CPU}/cpu{n}/online": "1\n" for n in range(4)}, (NO_NODES,)),
    "no-packages": (NO_PACKAGES, (NO_NODES,)),
    "no-packages-in-nodes": (
        NO_PACKAGES | {f"{NODE}/node0/cpumap": "f\n"},
        ("node*/cpu* links are not in the capture; cpulist/cpumap used instead",),
    ),
}


def called(*arguments: str) -> Result:
    return CliRunner().invoke(topology, arguments)


@pytest.fixture(params=WITHOUT_CPUS)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, tuple[str, ...]]:
    files, notes = WITHOUT_CPUS[request.param]
    for name, text in files.items():
        path = tmp_path / "odd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(tmp_path / "odd"), notes


def test_the_hardware_is_shown_and_what_a_kubelet_would_see(
    odd: tuple[str, tuple[str, ...]], tmp_path: Path
) -> None:
    source, notes = odd
    text = called("--machine", source)
    assert text.exit_code == 0, text.output
    assert "4 CPUs" in text.output.splitlines()[1]
    assert "0?" in text.output
    assert "unseen by the kubelet 4" in text.output
    assert "the kubelet sees no CPU: no core_id or physical_package_id" in text.output

    drawn = called("--machine", source, "-o", "svg")
    assert drawn.exit_code == 0, drawn.output
    assert "the kubelet sees no CPU" in drawn.output

    told = called("--machine", source, "-o", "json")
    kubelet = json.loads(told.output)["kubelet"]
    assert kubelet["num_cores"] == 0
    assert kubelet["notes"][0].startswith("the kubelet sees no CPU")
    assert all(note in " ".join(kubelet["notes"]) for note in notes)
    assert [cpu["kubelet_core"] for cpu in json.loads(told.output)["cpus"]] == [None] * 4

    # The document is a machine of its own, and shown alike.
    document = tmp_path / "odd.json"
    document.write_text(told.output, encoding="utf-8")
    again = called("--machine", str(document))
    assert again.exit_code == 0, again.output
    assert "the kubelet sees no CPU" in again.output


def test_a_plan_refuses_and_says_where_to_look(odd: tuple[str, tuple[str, ...]]) -> None:
    manifest = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"
    done = CliRunner().invoke(plan, ["--machine", odd[0], "-"], input=manifest)
    assert done.exit_code == 2
    assert "so a kubelet would see none" in done.output
    assert "pinfold topology" in done.output
    assert "Traceback" not in done.output


GPU_POD = """\
kind: Pod
apiVersion: v1
metadata: {name: train}
spec:
  containers:
  - name: model
    image: i
    resources: {limits: {cpu: 4, memory: 8Gi, hugepages-1Gi: 4Gi, nvidia.com/gpu: 2}}
"""
NEW_NODE = "2s8c2t@half@64Gi+hp1Gi=16@1+gpu=2@1+example.com/nic=2"
STATIC = ("--policy", "static", "--reserved-cpus", "0,16")


def planned(machine: str, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(
        plan, ["--machine", machine, *STATIC, *options, "-o", "json", "-"], input=GPU_POD
    )
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_new_node_is_planned_with_its_huge_pages_and_devices(tmp_path: Path) -> None:
    [pod] = planned(NEW_NODE)["pods"]
    assert pod["admitted"], pod
    [container] = pod["containers"]
    assert container["devices"] == {"nvidia.com/gpu": ["gpu-0", "gpu-1"]}

    told = called("--machine", NEW_NODE, "-o", "json")
    document = tmp_path / "new.json"
    document.write_text(told.output, encoding="utf-8")
    assert open_machine(document).pci == open_machine(NEW_NODE).pci
    assert planned(str(document))["pods"] == [pod]

    # A file of devices has the whole say.
    devices = tmp_path / "devices.yaml"
    devices.write_text(
        "kind: Devices\nversion: 1\nresources:\n  nvidia.com/gpu: {near: [nic-0, nic-1]}\n",
        encoding="utf-8",
    )
    [other] = planned(NEW_NODE, "--devices", str(devices))["pods"]
    assert other["containers"][0]["devices"] == {"nvidia.com/gpu": ["gpu-0", "gpu-1"]}
    [one] = Planner(open_machine(NEW_NODE), NodeConfig(), devices={}).devices or [None]
    assert one is None


def test_the_devices_of_a_new_node_are_at_their_numa_nodes() -> None:
    text = called("--machine", NEW_NODE).output
    assert "16 x 1 GiB (16 free)" in text
    section = text.partition("PCI devices")[2]
    assert section.index("nic-0") < section.index("node 1") < section.index("gpu-0, gpu-1")
