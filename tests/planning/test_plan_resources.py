"""Plans with memory, huge pages and devices: where they come from, what is left, and why not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from msgspec.structs import replace

from pinfold import NodeConfig, Planner, Quantity, parse_short_form
from pinfold.admission.admission import decide
from pinfold.admission.model import NodeError
from pinfold.cli import main
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.faults import KUBELET, SOUND
from pinfold.core.kubelet.versions import V1_34, V1_35, V1_36, V1_37, KubeletVersion
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.compare import changed_pods
from pinfold.planning.planner import PodPlacement
from pinfold.planning.resource_notes import unknown_resources
from tests.roots import ROOT
from tests.scenes.published_schemas import plan_document
from tests.scenes.resource_world import (
    FOUR,
    GIB,
    GPU,
    NIC,
    container,
    listed,
    machine,
    one,
    pod,
    static,
    worlds,
)

EXAMPLE = ROOT / "examples" / "gpu-node"
NODE = [
    *("--machine", str(EXAMPLE / "machine.json")),
    *("--kubelet-config", str(EXAMPLE / "kubelet.yaml")),
    *("--devices", str(EXAMPLE / "devices.yaml")),
]


def given_to(placement: PodPlacement) -> dict[str, Any]:
    """What the first container has."""
    placed = placement.containers[0]
    return {
        "cpus": str(placed.cpus),
        "memory": {block.type: block.size // GIB for block in placed.memory},
        "nodes": placed.numa_nodes,
        "devices": dict(placed.devices),
    }


# --------------------------------------------------------------------------------- where from


def test_all_of_a_container_is_at_one_numa_node() -> None:
    planner = Planner(machine(), static(), devices=FOUR)
    plan = planner.plan(
        [
            one("a", cpu="2", memory="2Gi", gpu="2"),
            one("b", cpu="2", memory="1Gi", pages="3Gi", nic="1", gpu="1"),
        ]
    )
    assert [given_to(placement) for placement in plan.pods] == [
        {
            "cpus": "2-3",
            "memory": {"memory": 2},
            "nodes": (0,),
            "devices": {GPU: ("gpu-0", "gpu-1")},
        },
        {
            "cpus": "8-9",
            "memory": {"memory": 1, "hugepages-1Gi": 3},
            "nodes": (1,),
            "devices": {GPU: ("gpu-2",), NIC: ("nic-1",)},
        },
    ]


def test_the_document_says_what_is_left() -> None:
    planner = Planner(machine(), static(), devices={**FOUR, **listed(odd=[()])})
    document = plan_document(planner.plan([one("a", cpu="2", memory="2Gi", pages="1Gi", gpu="1")]))
    assert document["config"]["memoryManagerPolicy"] == "Static"
    first, second = document["numa"]
    assert (first["id"], first["group"], second["group"]) == (0, [0], [1])
    assert first["memory"] == [
        {
            "type": "memory",
            "total": 16 * GIB,
            "reserved": 1 * GIB,
            "allocatable": 11 * GIB,
            "used": 2 * GIB,
            "free": 9 * GIB,
        },
        {
            "type": "hugepages-1Gi",
            "total": 4 * GIB,
            "reserved": 0,
            "allocatable": 4 * GIB,
            "used": 1 * GIB,
            "free": 3 * GIB,
        },
    ]
    assert first["devices"][GPU] == {"total": 2, "allocatable": 2, "used": 1, "free": 1}
    assert second["devices"][GPU] == {"total": 2, "allocatable": 2, "used": 0, "free": 2}
    assert document["devices"][GPU] == {"total": 4, "allocatable": 4, "used": 1, "free": 3}
    assert document["devices"]["example.com/odd"]["total"] == 1
    assert "example.com/odd" not in first["devices"]
    [placed] = document["pods"][0]["containers"]
    assert placed["numa_nodes"] == [0]
    assert placed["memory"] == [
        {"type": "hugepages-1Gi", "size": GIB, "numa_nodes": [0]},
        {"type": "memory", "size": 2 * GIB, "numa_nodes": [0]},
    ]
    assert placed["devices"] == {GPU: ["gpu-0"]}
    json.dumps(document)


def test_without_the_policy_nobody_counts_memory() -> None:
    config = static(memory_manager_policy="None", reserved_memory=())
    document = plan_document(Planner(machine(), config).plan([one("a", cpu="2", memory="2Gi")]))
    assert document["numa"][0]["memory"][0] == {
        "type": "memory",
        "total": 16 * GIB,
        "reserved": None,
        "allocatable": None,
        "used": None,
        "free": None,
    }
    [placed] = document["pods"][0]["containers"]
    assert (placed["memory"], placed["numa_nodes"], document["devices"]) == ([], [], {})


def test_memory_of_two_nodes_makes_a_group() -> None:
    planner = Planner(machine(), static(topology_manager_policy="none"))
    plan = planner.plan([one("wide", memory="18Gi", cpu="2"), one("narrow", cpu="2", memory="8Gi")])
    assert plan.pods[0].containers[0].numa_nodes == (0, 1)
    # What is left, 5 GiB in all, is of a group; alone no node of it may serve.
    assert "[memorymanager]" in str(plan.pods[1].decision.message)
    assert [node["group"] for node in plan_document(plan)["numa"]] == [[0, 1], [0, 1]]


def test_init_containers_hand_on_what_they_had() -> None:
    planner = Planner(machine(), static(), devices=FOUR)
    first = container("first", cpu="2", memory="4Gi", gpu="2")
    plan = planner.plan(
        [pod("a", container("main", cpu="2", memory="3Gi", gpu="1"), init=(first,))]
    )
    before, after = plan.pods[0].containers
    assert (before.devices[GPU], after.devices[GPU]) == (("gpu-0", "gpu-1"), ("gpu-0",))
    assert [block.size for block in (*before.memory, *after.memory)] == [1 * GIB, 3 * GIB]
    assert plan_document(plan)["numa"][0]["memory"][0]["used"] == 4 * GIB


def test_devices_that_are_ill_are_given_to_nobody() -> None:
    devices = {
        GPU: DeviceResource(GPU, {"a": Device("a", healthy=False), "b": Device("b")}),
        NIC: DeviceResource(NIC, {}),
    }
    planner = Planner(machine(), NodeConfig(), devices=devices)
    plan = planner.plan([one("x", gpu="1"), one("y", gpu="1"), one("z", nic="1")])
    assert given_to(plan.pods[0])["devices"] == {GPU: ("b",)}
    assert [placement.decision.message for placement in plan.rejected] == [
        (
            "Allocate failed due to requested number of devices unavailable for example.com/gpu. "
            "Requested: 1, Available: 0, which is unexpected"
        ),
        (
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
            "example.com/nic, which is unexpected"
        ),
    ]


def test_resources_that_nobody_lists_are_left_to_others() -> None:
    plan = Planner(machine(), static(), devices=FOUR).plan([one("a", **{"foo.com/x": "3"})])
    assert plan.pods[0].admitted


def test_a_plugin_with_preferences_is_not_asked() -> None:
    wants_to_be_asked = {GPU: replace(FOUR[GPU], preferred_allocation=True)}
    plan = Planner(machine(), static(), devices=wants_to_be_asked).plan([one("a", gpu="1")])
    assert given_to(plan.pods[0])["devices"] == {GPU: ("gpu-0",)}


# ------------------------------------------------------------------ configurations that are none


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"reserved_memory": ()},
            (
                'the total amount "0" of type "memory" is not equal to the value "1Gi" '
                "determined by Node Allocatable feature"
            ),
        ),
        (
            {"eviction_hard": {"memory.available": "100Mi"}},
            'the total amount "1Gi" of type "memory" is not equal to the value "1124Mi"',
        ),
        (
            {"reserved_memory": ({"numaNode": 2, "limits": {"memory": Quantity.parse("1Gi")}},)},
            (
                "the reserved memory configuration references a NUMA node 2 that does not exist on "
                "this machine"
            ),
        ),
        (
            {"system_reserved": {}, "reserved_memory": ()},
            "[memorymanager] you should specify the system reserved memory",
        ),
        (
            {
                "system_reserved": {"memory": Quantity.parse("13Gi")},
                "reserved_memory": ({"numaNode": 0, "limits": {"memory": Quantity.parse("13Gi")}},),
            },
            "reservedMemory keeps 13Gi of memory of NUMA node 0",
        ),
        ({"memory_manager_policy": "Dynamic"}, 'unknown policy: "Dynamic"'),
    ],
)
def test_a_reservation_that_would_stop_a_kubelet(change: dict[str, Any], words: str) -> None:
    with pytest.raises(NodeError) as caught:
        Planner(machine(), static(**change))
    assert words in str(caught.value)


def reserving(node: int, memory: str, reserved: str = "1Gi") -> NodeConfig:
    return static(
        system_reserved={"memory": Quantity.parse(reserved)},
        reserved_memory=({"numaNode": node, "limits": {"memory": Quantity.parse(memory)}},),
    )


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (reserving(2, "1Gi"), "a NUMA node of this machine: 0-1)"),
        (reserving(0, "2Gi"), "(for each resource the limits in reservedMemory must add up to "),
        (reserving(0, "13Gi", "13Gi"), "(spread it over the NUMA nodes, or lower it together"),
    ],
)
def test_a_reservation_is_told_with_what_mends_it(config: NodeConfig, remedy: str) -> None:
    for rules, verdict in (
        (KUBELET, "the kubelet would not start: "),
        (SOUND, "the configuration does not fit this machine: "),
    ):
        with pytest.raises(NodeError) as caught:
            Planner(machine(), config, rules=rules)
        text = str(caught.value)
        assert text.startswith(verdict)
        assert remedy in text
        assert ("must add up" in text) == ("must add up" in remedy)


def test_a_machine_of_which_no_memory_is_known() -> None:
    plain = parse_short_form("2s4c2t")
    nodes = tuple(replace(node, memory_bytes=None) for node in plain.numa_nodes)
    unknown = replace(plain, numa_nodes=nodes, memory_bytes=None)
    with pytest.raises(NodeError, match="does not tell how much memory its NUMA nodes have"):
        Planner(unknown, static())


MANY = "1s24n24c1t@1Gi"
WIDE = {"max-allowable-numa-nodes": "64"}


def test_memory_of_too_many_numa_nodes_is_refused() -> None:
    for policy in ("none", "best-effort"):
        config = static(
            cpu_manager_policy="none",
            topology_manager_policy=policy,
            topology_manager_policy_options=WIDE,
            system_reserved={"memory": Quantity.parse("1Mi")},
            reserved_memory=({"numaNode": 0, "limits": {"memory": Quantity.parse("1Mi")}},),
        )
        with pytest.raises(NodeError, match=r"24 NUMA nodes .* memoryManagerPolicy: None"):
            Planner(parse_short_form(MANY), config)


def test_devices_at_too_many_numa_nodes_are_refused() -> None:
    config = NodeConfig(topology_manager_policy="best-effort", topology_manager_policy_options=WIDE)
    old = replace(config, kubelet_version=V1_34)
    with pytest.raises(NodeError, match=r"24 NUMA nodes are .* topologyManagerPolicy: none"):
        Planner(parse_short_form(MANY), old, devices=FOUR)
    everywhere = listed(gpu=[(node,) for node in range(21)])
    with pytest.raises(NodeError, match=r"21 NUMA nodes have devices example.com/gpu"):
        Planner(parse_short_form(MANY), config, devices=everywhere)
    few = Planner(parse_short_form(MANY), config, devices=FOUR)
    assert given_to(few.plan([one("a", gpu="3")]).pods[0])["devices"] == {
        GPU: ("gpu-0", "gpu-1", "gpu-2")
    }
    none = Planner(parse_short_form(MANY), NodeConfig(), devices=FOUR)
    assert none.plan([one("a", gpu="1")]).pods[0].admitted


def test_a_plugin_that_registers_on_such_a_machine_costs_pods_their_admission() -> None:
    config = NodeConfig(
        topology_manager_policy="best-effort",
        topology_manager_policy_options=WIDE,
        kubelet_version=V1_34,
    )
    planner = Planner(parse_short_form(MANY), config)
    registered = replace(planner.empty, devices=DeviceState(FOUR))
    decision = decide(planner.node, registered, one("a", gpu="1"))
    assert decision.reason == "UnexpectedAdmissionError"
    assert "24 NUMA nodes have 2^24 combinations" in str(decision.message)
    assert "topology manager policy none" in str(decision.message)
    assert decide(planner.node, registered, one("b", cpu="1")).admitted


@pytest.mark.parametrize(
    ("version", "cpus"),
    [
        (V1_34, "1-2"),
        (KubeletVersion(35, 5), "1-2"),
        (V1_35, "1,15"),
        (KubeletVersion(36, 1), "1-2"),
        (V1_36, "1,15"),
        (V1_37, "1,15"),
    ],
)
def test_devices_align_with_nodes_that_have_none_only_in_old_kubelets(
    version: KubeletVersion, cpus: str
) -> None:
    """One CPU is left where the device is: once the other node was as good."""
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0]),
        topology_manager_policy="best-effort",
        kubelet_version=version,
    )
    planner = Planner(parse_short_form("2s8c1t@16Gi"), config, devices=listed(gpu=[(1,), (1,)]))
    before = one("a", cpu="7", memory="1Gi", gpu="1")
    wanted = one("b", cpu="2", memory="1Gi", gpu="1")
    assert given_to(planner.plan([before, wanted]).pods[1])["cpus"] == cpus


# ------------------------------------------------------------------------------------ compared


def test_a_change_of_memory_or_devices_is_a_change() -> None:
    pods = [one("a", cpu="2", memory="1Gi", gpu="1"), one("b", gpu="1"), one("c", cpu="1")]
    before = Planner(machine(), static(), devices=FOUR).plan(pods)
    config = static(memory_manager_policy="None", reserved_memory=())
    after = Planner(machine(), config, devices=FOUR).plan(pods)
    assert [old.pod.name for old, _ in changed_pods(before, after)] == ["a"]
    fewer = Planner(machine(), static(), devices=listed(gpu=[(1,), (0,)])).plan(pods)
    assert [old.pod.name for old, _ in changed_pods(before, fewer)] == ["a", "b"]


# --------------------------------------------------------------------------------- command line


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_example_node() -> None:
    document = json.loads(run("plan", *NODE, str(EXAMPLE / "pods.yaml"), "-o", "json"))
    outcome = {one["name"]: one["reason"] for one in document["pods"]}
    assert outcome == {
        "train": None,
        "router": None,
        "serve": "UnexpectedAdmissionError",
        "sweep": "TopologyAffinityError",
        "web": None,
    }
    train = document["pods"][0]["containers"][0]
    assert train["devices"] == {GPU: ["gpu-17", "gpu-65"], "example.com/vf": ["vf-0"]}
    assert (train["numa_nodes"], document["notes"]) == ([0], [])
    explanation = json.loads(
        run("explain", *NODE, str(EXAMPLE / "pods.yaml"), "--pod", "serve", "-o", "json")
    )
    assert explanation["memoryManagerPolicy"] == "Static"
    assert explanation["remedies"][0].startswith("ask for 80Gi memory instead of 84Gi")


def test_resources_that_no_plugin_lists_are_told() -> None:
    without = (*NODE[:4], str(EXAMPLE / "pods.yaml"))
    note = "example.com/gpu, example.com/vf are not known here: planned without them (--devices)"
    assert json.loads(run("plan", *without, "-o", "json"))["notes"] == [note]
    assert f"• {note}" in " ".join(run("plan", *without).split())
    compared = ("--compare", str(EXAMPLE / "kubelet.yaml"))
    assert json.loads(run("plan", *without, *compared, "-o", "json"))["notes"] == [note]
    assert f"• {note}" in " ".join(run("plan", *without, *compared).split())

    planner = Planner(machine(), static(), devices=listed(gpu=[()]))
    pods = [one("a", cpu="1", memory="1Gi", gpu="1", nic="0"), one("b", **{"foo.com/x": "1"})]
    assert unknown_resources(planner, pods) == ("foo.com/x",)


def test_compare_keeps_the_devices(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        re.sub(
            r"(?ms)^memoryManagerPolicy.*?$|^reservedMemory.*",
            "",
            (EXAMPLE / "kubelet.yaml").read_text(),
        )
    )
    pods = str(EXAMPLE / "pods.yaml")
    document = json.loads(run("plan", *NODE, pods, "--compare", str(other), "-o", "json"))
    assert [pod["name"] for pod in document["changed"]] == ["train", "router", "serve"]
    assert document["after"]["pods"][0]["containers"][0]["devices"]
    text = run("plan", *NODE, pods, "--compare", str(other))
    assert "memory 48 GiB on NUMA node 0" in text
    assert re.search(r"^ +0 .* 52 of 76\.9 GiB", text, re.MULTILINE)
    assert "</svg>" in run("plan", *NODE, pods, "--compare", str(other), "-o", "svg")


def test_a_bad_file_of_devices_is_one_clear_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: Devices\nversion: 1\nresources: {a.b/c: {numa: [9]}}")
    result = CliRunner().invoke(
        main, ["plan", "--machine", "2s4c2t", "--devices", str(bad), str(EXAMPLE / "pods.yaml")]
    )
    assert result.exit_code == 2
    assert "resources['a.b/c'].numa[0]: the machine has no NUMA node 9" in result.stderr
    assert "Traceback" not in result.output


# ---------------------------------------------------------------------------------- invariants


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_what_is_given_is_what_is_missing(world: tuple[Planner, list[Pod]]) -> None:
    planner, pods = world
    plan = planner.plan(pods)
    document = plan_document(plan)
    owners: dict[tuple[str, str], str] = {}
    blocks: dict[str, int] = {}
    for placement in plan.pods:
        asked = {c.name: c for c in placement.pod.all_containers}
        for placed in placement.containers:
            assert placement.admitted or not (placed.memory or placed.devices)
            for block in placed.memory:
                blocks[block.type] = blocks.get(block.type, 0) + block.size
            for resource, ids in placed.devices.items():
                assert len(ids) == asked[placed.name].limits[resource].value()
                for id_ in ids:
                    assert (
                        owners.setdefault((resource, id_), placement.pod.uid) == placement.pod.uid
                    )
    for resource, counts in document["devices"].items():
        assert counts["used"] == sum(name == resource for name, _ in owners)
        assert counts["used"] + counts["free"] == counts["allocatable"] == counts["total"]
    used: dict[str, int] = {}
    for node in document["numa"]:
        for row in node["memory"]:
            if row["used"] is not None:
                assert row["used"] + row["free"] == row["allocatable"]
                used[row["type"]] = used.get(row["type"], 0) + row["used"]
        for counts in node["devices"].values():
            assert 0 <= counts["used"] <= counts["total"]
    assert {name: size for name, size in used.items() if size} == blocks


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_one_numa_node_is_one(world: tuple[Planner, list[Pod]]) -> None:
    planner, pods = world
    policy = planner.config.topology_manager_policy
    for placement in planner.plan(pods).admitted if policy == "single-numa-node" else ():
        for placed in placement.containers:
            common = set(planner.view.numa_nodes)
            for resource, ids in placed.devices.items():
                for id_ in ids:
                    near = planner.devices[resource].devices[id_].numa_nodes
                    common &= set(near) or common
            for block in placed.memory:
                common &= set(block.numa_affinity or ())
            if placed.exclusive:
                rows = planner.view.topology.by_cpu
                for cpu in placed.cpus:
                    common &= {rows[cpu].numa_node}
            assert common, placement
