"""What an agent publishes of its node, and that a plan of it decides as the agent does."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.adapters.kubernetes.node_publisher import NodePublisher
from pinfold.adapters.kubernetes.published_node import Published, config_map, published_of
from pinfold.admission.node_status import NodeStatus, node_status
from pinfold.agent.published_node import published_node
from pinfold.cli import main
from pinfold.config.agent import AgentConfig, deciding_configuration, load_agent_config
from pinfold.config.kubelet import kubelet_config
from pinfold.config.written import held_config
from pinfold.core.machine.short_form import parse_short_form
from pinfold.documents.live.published import PublishedNode
from pinfold.planning.planner import Plan, Planner
from tests.roots import ROOT
from tests.scenes.kube_api_peer import (
    Certificates,
    KubeApiPeer,
    Reports,
    at_work,
    connected,
    make_certificates,
    serving,
)
from tests.scenes.live_cluster import LiveCluster, live_pod
from tests.scenes.waiting import until

OVERLAY = ROOT / "deploy" / "kubernetes" / "overlays" / "publish-node" / "config.yaml"
PLACE = "/api/v1/namespaces/pinfold-nodes/configmaps/n1?fieldManager=pinfold&force=true"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


def planned(config: AgentConfig, machine: str, pods: list[dict[str, Any]]) -> Plan:
    planner = Planner(parse_short_form(machine), config.node)
    read = read_manifests((), own=True, live=[("here", {"kind": "Pod", **pod}) for pod in pods])
    return planner.collected(planner.decisions(read.pods))


def published(config: AgentConfig, plan: Plan) -> Published:
    planner = plan.planner
    return published_node("n1", planner.machine, planner.view, config, plan.state)


def test_a_plan_of_what_is_published_is_the_agents(
    peer: KubeApiPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_agent_config(OVERLAY)
    pods = [live_pod("a", "n1"), live_pod("b", "n1", "4")]
    plan = planned(config, "1s8c2t", pods)
    peer.put_node("n1")
    status = node_status(
        plan.planner.machine, plan.planner.view, config.node, plan.planner.node, plan.state
    )

    async def now() -> NodeStatus:
        return status

    async def scenario() -> None:
        async with connected(peer, tmp_path) as client:
            publisher = NodePublisher(
                client,
                "n1",
                now,
                Reports().append,
                labels=False,
                topology=False,
                facts=lambda: published(config, plan),
                period=0.01,
            )
            async with at_work(publisher.run()):
                await until(lambda: peer.of("PATCH"))
                await asyncio.sleep(0.1)

    asyncio.run(scenario())
    (asked,) = peer.of("PATCH")  # nothing has changed since, but the time
    assert asked.path == PLACE
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}
    assert asked.body["metadata"]["ownerReferences"] == [owner]

    cluster = LiveCluster(published={"n1": asked.body}).behind(peer)
    cluster.node("n1", *pods)
    monkeypatch.setenv("KUBECONFIG", str(peer.kubeconfig(tmp_path / "kubeconfig")))
    done = CliRunner().invoke(main, ["plan", "--node", "n1", "-o", "json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    has = {uid: {n: str(c) for n, c in one.items()} for uid, one in plan.ledger.assignments.items()}
    assert {
        pod["uid"]: {one["name"]: one["cpus"] for one in pod["containers"]}
        for pod in document["pods"]
    } == has
    assert not [note for note in document["notes"] if "other CPUs" in note]
    assert document["kubelet"]["version"].startswith(str(config.node.kubelet_version))


@pytest.mark.parametrize("overlay", ["publish-node", "node-labels"])
def test_the_configuration_that_is_published_decides_alike(overlay: str, tmp_path: Path) -> None:
    file = OVERLAY.parent.parent / overlay / "config.yaml"
    more = tmp_path / "config.yaml"
    more.write_text(
        file.read_text()
        + "  kubeconfig: /etc/secret/kubeconfig\n  scaleDownGracePeriod: 3s\n"
        + "  kubeletVersion: '1.35'\n"
    )
    config = load_agent_config(more)
    told = json.loads(json.dumps(deciding_configuration(config)))
    assert kubelet_config(held_config(told, "here")).config == config.node
    assert "secret" not in json.dumps(told)
    assert "containerd" not in json.dumps(told)


def test_an_agent_without_a_file_publishes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinfold.config.agent.DEFAULT_FILE", Path("/nowhere/config.yaml"))
    config = load_agent_config(None)
    again = kubelet_config(held_config(deciding_configuration(config), "here")).config
    assert again.cpu_manager_policy == config.node.cpu_manager_policy
    assert again.kube_reserved == config.node.kube_reserved


def test_it_holds_neither_environment_nor_command_lines_and_is_small(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("maxPods: 300\n" + OVERLAY.read_text())
    config = load_agent_config(file)
    pods = [live_pod(f"p{number}", "n1", "2" if number < 200 else "100m") for number in range(250)]
    plan = planned(config, "2s4n128c2t", pods)
    found = published(config, plan)
    written = config_map("n1", found)
    text = json.dumps(written)
    assert "not-to-be-told" not in text
    assert "/app" not in text
    assert len(text) < 64 << 10, "an API server takes 1 MiB"
    assert published_of(written, "here") == found
    node = msgspec.json.decode(found.node, type=PublishedNode)
    assert len(node.assignments) == 200
    packed = base64.b64decode(written["binaryData"]["machine.json.gz"])
    assert len(packed) < len(found.machine) / 4
