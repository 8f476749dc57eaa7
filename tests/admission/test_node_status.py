"""Node status: the kubelet's arithmetic, the zones, and the forms in which it is published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pinfold.admission.model import build_node, empty_state
from pinfold.admission.node_status import (
    OPTION_LABELS,
    NodeStatus,
    node_labels,
    node_resource_topology,
    node_status,
)
from pinfold.core.kubelet.node_allocatable import parse_reserved
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Distances, HugepagePool, Machine, NUMANode
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.manager_harness import Harness, manifest, parse, run_virtually
from tests.scenes.memory_scene import TOPOLOGY, conform
from tests.scenes.published_schemas import node_status_document
from tests.scenes.web_world import served

NO_EVICTION: dict[str, str] = {}
GIB = 1 << 30


def status_of(machine: Machine, config: NodeConfig) -> NodeStatus:
    view = kubelet_view(machine)
    node = build_node(machine, config, view=view)
    return node_status(machine, view, config, node, empty_state(node, view.topology.cpus))


def static(machine: str = "1s16c1t", **settings: Any) -> dict[str, Any]:
    config = NodeConfig(cpu_manager_policy="static", eviction_hard=NO_EVICTION, **settings)
    return node_status_document(status_of(parse_short_form(machine), config))


# --------------------------------------------------------------------------------- the arithmetic


@pytest.mark.parametrize(
    ("settings", "cpu"),
    [
        # 16 CPUs without SMT; 1 CPU for the system and 500m for the kubelet leave 14,500m.
        ({"system": "1", "kube": "500m"}, "14500m"),
        # An exact set takes the place of both reservations of cpu in today's kubelet, so the
        # 500m beside CPUs 1 and 9 are not taken off ...
        ({"exact": [1, 9], "kube": "500m"}, "14"),
        ({"exact": [1, 9], "kube": "500m", "system": "3"}, "14"),
        # ... nor are they beside a single CPU.
        ({"exact": [1], "kube": "500m"}, "15"),
        ({"system": "1m"}, "15999m"),
    ],
)
def test_allocatable_cpu(settings: dict[str, Any], cpu: str) -> None:
    document = static(
        kube_reserved=parse_reserved({"cpu": settings["kube"]} if "kube" in settings else {}),
        system_reserved=parse_reserved({"cpu": settings["system"]} if "system" in settings else {}),
        reserved_system_cpus=CPUSet(settings.get("exact", ())),
    )
    assert document["capacity"]["cpu"] == "16"
    assert document["allocatable"]["cpu"] == cpu


def test_memory_and_huge_pages() -> None:
    nodes = tuple(
        NUMANode(n, CPUSet(range(n * 4, n * 4 + 4)), 8 * GIB, {2 << 20: HugepagePool(256, 256)})
        for n in (0, 1)
    )
    plain = parse_short_form("2s4c1t")
    machine = Machine(
        name="m",
        source="test",
        cpus=plain.cpus,
        numa_nodes=nodes,
        sockets=plain.sockets,
        cores=plain.cores,
        memory_bytes=16 * GIB,
    )
    config = NodeConfig(
        kube_reserved=parse_reserved({"cpu": "1", "memory": "1Gi"}),
        eviction_hard={"memory.available": "512Mi"},
        max_pods=50,
    )
    document = node_status_document(status_of(machine, config))
    assert document["capacity"] == {
        "cpu": "8",
        "memory": "16Gi",
        "hugepages-2Mi": "1Gi",
        "pods": "50",
    }
    # 16Gi less 1Gi reserved, 512Mi that are never touched, and 1Gi of pages.
    assert document["allocatable"] == {
        "cpu": "7",
        "memory": "13824Mi",
        "hugepages-2Mi": "1Gi",
        "pods": "50",
    }
    assert [zone["memory_bytes"] for zone in document["zones"]] == [8 * GIB, 8 * GIB]
    # Without distances there are no costs.
    topology = node_resource_topology(status_of(machine, config), "n")
    assert all("costs" not in zone for zone in topology["zones"])


def test_requests_and_what_is_left() -> None:
    async def scenario() -> None:
        config = NodeConfig(
            cpu_manager_policy="static",
            reserved_system_cpus=CPUSet([0, 8]),
            eviction_hard=NO_EVICTION,
        )
        harness = Harness(machine="2s4c2t", config=config)
        manager = await harness.start()
        machine = parse_short_form("2s4c2t")
        for document in (manifest("own", "4"), manifest("part", "500m")):
            text = json.dumps(document)
            await manager.admit(parse(text), manifest=text)
        await manager.books.set_offline(CPUSet([15]))
        document = node_status_document(
            node_status(
                machine, harness.view, config, manager.books.view.node, manager.books.view.state
            )
        )
        assert document["requested"] == {"cpu": "4500m", "memory": "128Mi", "pods": "2"}
        owned = manager.books.view.state.ledger.exclusive
        assert len(owned) == 4
        left = [len((CPUSet(range(n * 8, n * 8 + 8)) - CPUSet([0, 8, 15])) - owned) for n in (0, 1)]
        assert [zone["resources"]["cpu"] for zone in document["zones"]] == [
            {"capacity": "8", "allocatable": "7", "available": str(left[0])},
            {"capacity": "8", "allocatable": "6", "available": str(left[1])},
        ]

    run_virtually(scenario())


def test_under_policy_none_no_zone_gives_cpus() -> None:
    machine = parse_short_form("2s4c2t")
    status = status_of(machine, NodeConfig(eviction_hard=NO_EVICTION))
    assert [dict(zone.resources) for zone in status.zones] == [{}, {}]
    assert all("resources" not in z for z in node_resource_topology(status, "n")["zones"])
    assert node_labels(status)["pinfold.dev/exclusive-cpus"] == "0"
    assert status.allocatable["cpu"].canonical() == "16"


# ---------------------------------------------------------------------------------- the published


@pytest.mark.parametrize(
    ("policy", "scope", "deprecated"),
    [
        ("none", "container", "None"),
        ("none", "pod", "None"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("restricted", "container", "RestrictedContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
    ],
)
def test_a_node_resource_topology(policy: str, scope: str, deprecated: str) -> None:
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0, 8]),
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        eviction_hard=NO_EVICTION,
    )
    found = node_resource_topology(status_of(parse_short_form("2s4c2t"), config), "worker-1")
    conform(found, TOPOLOGY)
    assert (found["apiVersion"], found["kind"], found["metadata"]) == (
        "topology.node.k8s.io/v1alpha2",
        "NodeResourceTopology",
        {"name": "worker-1"},
    )
    assert found["topologyPolicies"] == [deprecated]
    assert found["attributes"] == [
        {"name": "topologyManagerPolicy", "value": policy},
        {"name": "topologyManagerScope", "value": scope},
    ]
    first, second = found["zones"]
    assert (first["name"], first["type"], second["name"]) == ("node-0", "Node", "node-1")
    assert first["costs"][0] == {"name": "node-0", "value": 10}
    assert [cost["name"] for cost in second["costs"]] == ["node-0", "node-1"]
    assert first["costs"][1]["value"] == second["costs"][0]["value"] > 10
    assert first["resources"] == [
        {"name": "cpu", "capacity": "8", "allocatable": "7", "available": "7"}
    ]


def test_costs_where_node_numbers_have_gaps() -> None:
    plain = parse_short_form("2s4c1t")
    nodes = (
        NUMANode(0, CPUSet(range(4)), GIB),
        NUMANode(8, CPUSet(range(4, 8)), GIB),
        NUMANode(253, CPUSet(), GIB),
    )
    cpus = tuple(
        type(cpu)(**{
            name: getattr(cpu, name) for name in cpu.__struct_fields__
        } | {"numa": 0 if cpu.cpu < 4 else 8})
        for cpu in plain.cpus
    )  # fmt: skip
    rows = {0: (10, 40, 80), 8: (40, 10, 80), 253: (80, 80, 10)}
    machine = Machine(
        name="m",
        source="test",
        cpus=cpus,
        numa_nodes=nodes,
        sockets=plain.sockets,
        cores=plain.cores,
        memory_bytes=3 * GIB,
        distances=Distances((0, 8, 253), rows),
    )
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0]),
        eviction_hard=NO_EVICTION,
    )
    found = node_resource_topology(status_of(machine, config), "power")
    conform(found, TOPOLOGY)
    assert [zone["name"] for zone in found["zones"]] == ["node-0", "node-8", "node-253"]
    assert [cost["value"] for cost in found["zones"][1]["costs"]] == [40, 10, 80]
    # A node that is only memory has no CPUs to give.
    assert "resources" not in found["zones"][2]


def test_labels_are_valid_and_short() -> None:
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0, 8]),
        topology_manager_policy="single-numa-node",
        eviction_hard=NO_EVICTION,
    )
    labels = node_labels(status_of(parse_short_form("2s4c2t"), config))
    assert labels == {
        "pinfold.dev/cpu-manager-policy": "static",
        "pinfold.dev/topology-manager-policy": "single-numa-node",
        "pinfold.dev/topology-manager-scope": "container",
        "pinfold.dev/numa-nodes": "2",
        "pinfold.dev/sockets": "2",
        "pinfold.dev/exclusive-cpus": "14",
    }
    for name, value in labels.items():
        assert re.fullmatch(r"pinfold\.dev/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)


def test_options_are_labels_each() -> None:
    """A selector can ask for one of them; a label of an option that went is removed."""
    config = NodeConfig(
        cpu_manager_policy="configurable",
        cpu_manager_policy_options={"full-pcpus-only": "true"},
        reserved_system_cpus=CPUSet([0, 8]),
        eviction_hard=NO_EVICTION,
        own=OwnPolicies(),
    )
    labels = node_labels(status_of(parse_short_form("2s4c2t"), config))
    assert labels["pinfold.dev/cpu-manager-policy"] == "configurable"
    options = {name: value for name, value in labels.items() if name in OPTION_LABELS}
    assert options["pinfold.dev/cpu-manager-policy-option.full-pcpus-only"] == "true"
    assert len(labels) == 6 + len(options)
    for name in OPTION_LABELS:
        assert re.fullmatch(r"pinfold\.dev/[a-z][-A-Za-z0-9.]{0,61}[A-Za-z0-9]", name)


def test_the_api_answers_it(tmp_path: Path) -> None:
    with served(tmp_path / "s", machine="2s4c2t") as server:
        before = server.ask("GET", "/v1/node").json
        assert before["version"] == 1
        assert before["requested"] == {"pods": "0"}
        assert server.ask("POST", "/v1/pods", manifest("web", "2")).status == 201
        after = server.ask("GET", "/v1/node").json
        assert after["requested"]["cpu"] == "2"
        assert sum(int(z["resources"]["cpu"]["available"]) for z in after["zones"]) == 13
        assert server.ask("GET", "/v1/node?x=1").status == 400
