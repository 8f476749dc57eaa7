"""``pinfold plan`` of nodes of a cluster: what is read, what is answered, and how it is refused."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pinfold.adapters.kubernetes.live_reads import READS
from pinfold.cli import main
from tests.scenes.kube_api_peer import Certificates, KubeApiPeer, make_certificates, serving
from tests.scenes.live_cluster import LiveCluster, live_pod, published_map, wrote

STATIC = ("--policy", "static", "--reserved-cpus", "0")
NEW: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "new"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 2, "memory": "1Gi"}}}]},
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


@pytest.fixture
def cluster(peer: KubeApiPeer) -> LiveCluster:
    made = LiveCluster()
    later = live_pod("a", "n1", started="2026-03-01T09:00:00Z")
    made.node("n1", later, live_pod("b", "n1", owner="web"), live_pod("gone", "n1", phase="Failed"))
    made.node("n2", live_pod("c", "n2"))
    return made.behind(peer)


@pytest.fixture
def run(
    peer: KubeApiPeer, cluster: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    assert cluster.nodes
    monkeypatch.setenv("KUBECONFIG", str(peer.kubeconfig(tmp_path / "kubeconfig")))

    def command(*words: str) -> Result:
        return CliRunner().invoke(main, list(words))

    return command


def cpus(result: Result) -> dict[str, str | None]:
    """The exclusive CPUs of the pods of a plan, in the order of their admission."""
    assert result.exit_code == 0, result.output
    return {
        pod["name"]: pod["containers"][0]["cpus"] if pod["containers"][0]["exclusive"] else None
        for pod in json.loads(result.stdout)["pods"]
    }


def notes(result: Result) -> str:
    return "\n".join(json.loads(result.stdout)["notes"])


def test_the_pods_of_a_node_in_the_order_in_which_they_came(run: Any) -> None:
    done = run("plan", "--node", "n1=1s8c2t", *STATIC, "-o", "json")
    assert cpus(done) == {"b": "2-3", "a": "4-5"}
    assert "1 pod that ended left out" in notes(done)
    assert "which CPUs its pods have is not known" in notes(done)


def test_new_pods_come_last_and_are_named(run: Any, tmp_path: Path) -> None:
    aged = {**NEW, "metadata": {"name": "new", "creationTimestamp": "2020-01-01T00:00:00Z"}}
    file = wrote(tmp_path / "new.json", {**aged, "spec": {**NEW["spec"], "nodeName": "n1"}})
    done = run("plan", "--from-cluster", "--node", "n1=1s8c2t", *STATIC, "-o", "json", file)
    assert cpus(done) == {"b": "2-3", "a": "4-5", "new": "6-7"}
    assert "new beside what runs there: default/new" in notes(done)


def test_what_the_agent_publishes_is_enough(run: Any, cluster: LiveCluster) -> None:
    has = {"uid-of-a": {"main": "8-9"}, "uid-of-b": {"main": "2-3"}}
    cluster.published["n1"] = published_map("n1", assignments=has)
    done = run("plan", "--node", "n1", "-o", "json")
    assert cpus(done) == {"b": "2-3", "a": "4-5"}
    assert (
        "node n1: 1 of 2 containers have other CPUs there than in this plan, which admits all pods "
        "anew: default/a/main has 8-9, here 4-5" in notes(done)
    )
    assert "not known" not in notes(done)
    assert "not-to-be-told" not in done.output
    # A file that is given goes before what the agent says.
    none = run("plan", "--node", "n1", "--policy", "none", "-o", "json")
    assert set(cpus(none).values()) <= {"", None}


def test_another_configuration(run: Any, cluster: LiveCluster, tmp_path: Path) -> None:
    cluster.published["n1"] = published_map("n1")
    other = tmp_path / "other.yaml"
    other.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n"
    )
    done = run("plan", "--node", "n1", "--compare", str(other))
    assert done.exit_code == 0, done.output
    assert "the agent of node n1" in done.stdout
    assert "other.yaml" in done.stdout


def test_an_old_publication_is_told(run: Any, cluster: LiveCluster) -> None:
    cluster.published["n1"] = published_map("n1", at="2026-01-01T00:00:00+00:00")
    assert "h old; does it run?" in notes(run("plan", "--node", "n1", "-o", "json"))


def test_a_machine_that_is_not_the_nodes(run: Any) -> None:
    done = run("plan", "--node", "n1=1s4c2t", *STATIC, "-o", "json")
    assert "its capacity says 16 CPUs, and machine and configuration here make it 8" in notes(done)


def test_all_nodes_and_some(run: Any, cluster: LiveCluster, tmp_path: Path) -> None:
    for name in cluster.nodes:
        cluster.published[name] = published_map(name)
    file = wrote(tmp_path / "new.json", NEW)
    done = run("plan", "--from-cluster", "-o", "json", file)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [node["name"] for node in document["nodes"]] == ["n1", "n2"]
    placed = {pod["name"]: pod["node"] for pod in document["pods"]}
    assert placed == {"b": "n1", "a": "n1", "c": "n2", "new": placed["new"]}
    some = json.loads(run("plan", "--node", "n?", "--node", "n2", "-o", "json").stdout)
    assert {node["name"] for node in some["nodes"]} == {"n1", "n2"}
    assert run("plan", "--node", "x*").exit_code == 1


def test_each_node_of_several_decides_as_its_own_agent(run: Any, cluster: LiveCluster) -> None:
    cluster.published["n1"] = published_map("n1", "1s8c2t")
    cluster.published["n2"] = published_map("n2", "1s4c2t", reservedSystemCPUs="0-1")
    document = json.loads(run("plan", "--from-cluster", "-o", "json").stdout)
    plans = {node["name"]: node["plan"] for node in document["nodes"]}
    assert [plans[name]["reserved"] for name in ("n1", "n2")] == ["0", "0-1"]
    assert plans["n2"]["machine"]["name"] == "1s4c2t"


def test_a_node_resource_topology(run: Any, cluster: LiveCluster) -> None:
    path = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "costs": [{"name": f"node-{n}", "value": 10 if n == number else 21} for n in (0, 1)],
            "resources": [
                {"name": "cpu", "capacity": "8", "allocatable": "7", "available": "3"},
                {"name": "memory", "capacity": "32Gi", "allocatable": "30Gi", "available": "1Gi"},
            ],
        }
        for number in (0, 1)
    ]
    cluster.other[path] = (200, {"kind": "NodeResourceTopology", "zones": zones})
    words = ("plan", "--node", "n1", "--node-resource-topology", *STATIC, "-o", "json")
    done = run(*words)
    assert cpus(done) == {"b": "1-2", "a": "3-4"}
    assert "planned as if each CPU were a core of its own" in notes(done)
    cluster.other[path] = (200, {"zones": [{"name": "node-0", "type": "Node"}]})
    assert "names no CPUs by NUMA node" in run(*words).output
    del cluster.other[path]
    assert "--node-resource-topology (it has none)" in run(*words).output


def test_configz_is_asked_only_when_it_is_said(
    run: Any, cluster: LiveCluster, peer: KubeApiPeer
) -> None:
    served = {"kubeletconfig": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}}
    cluster.other["/api/v1/nodes/n1/proxy/configz"] = (200, served)
    silent = run("plan", "--node", "n1=1s8c2t")
    assert silent.exit_code == 1
    assert "as strong as exec in every container" in silent.output
    assert not peer.of("GET", "proxy")
    assert cpus(run("plan", "--node", "n1=1s8c2t", "--configz", "-o", "json"))["b"] == "2-3"
    cluster.denied = ("proxy",)
    denied = run("plan", "--node", "n1=1s8c2t", "--configz")
    assert '{apiGroups: [""], resources: [nodes/proxy], verbs: [get]}' in denied.output
    assert "as strong as exec in every container" in denied.output


def test_a_node_of_which_nothing_tells_the_machine(run: Any) -> None:
    done = run("plan", "--node", "n1", *STATIC)
    assert done.exit_code == 1
    for way in ("--node n1=FILE", "publishNode: true", "--node-resource-topology"):
        assert way in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("denied", "rule"),
    [
        ("/nodes/n1", '{apiGroups: [""], resources: [nodes], verbs: [get]} of a ClusterRole'),
        ("/pods", '{apiGroups: [""], resources: [pods], verbs: [list]} of a ClusterRole'),
        (
            "/configmaps",
            '{apiGroups: [""], resources: [configmaps], verbs: [get]} in namespace pinfold-nodes',
        ),
    ],
)
def test_a_missing_right_is_named(run: Any, cluster: LiveCluster, denied: str, rule: str) -> None:
    cluster.denied = (denied,)
    done = run("plan", "--node", "n1")
    assert done.exit_code == 1
    assert rule in done.output
    if denied == "/configmaps":
        # Who says everything by options needs no right to what agents publish.
        assert run("plan", "--node", "n1=1s8c2t", *STATIC).exit_code == 0


def test_every_request_is_listed(run: Any, peer: KubeApiPeer) -> None:
    done = run("plan", "--node", "n1=1s8c2t", *STATIC, "--verbose")
    lines = [line for line in done.stderr.splitlines() if line.startswith("GET ")]
    assert len(lines) == len(peer.requests) == len(READS["--node"])
    assert sorted(line.split()[1] for line in lines) == sorted(one.path for one in peer.requests)
    assert {line.split()[2] for line in lines} == {"200", "404"}


def test_every_request_is_in_the_table(run: Any, peer: KubeApiPeer, cluster: LiveCluster) -> None:
    cluster.published["n1"] = published_map("n1")
    for words, asked in (
        (("plan", "--node", "n1"), "--node"),
        (("plan", "--from-cluster", *STATIC, "--machine", "1s8c2t"), "--from-cluster"),
    ):
        peer.requests.clear()
        run(*words)
        paths = {one.path.partition("?")[0] for one in peer.requests}
        forms = [re.sub(r"\\{\w+\\}", "[^/]+", re.escape(one.path)) for one in READS[asked]]
        assert all(any(re.fullmatch(form, path) for form in forms) for path in paths)
        assert all(any(re.fullmatch(form, path) for path in paths) for form in forms)


def test_another_node_than_asked_for_is_refused(run: Any, cluster: LiveCluster) -> None:
    cluster.nodes["n1"]["metadata"]["name"] = "other"
    done = run("plan", "--node", "n1=1s8c2t", *STATIC)
    assert (done.exit_code, done.stdout) == (1, "")
    assert ", asked for n1, answers with 'other'" in done.stderr


def test_no_server_no_token_no_node(
    run: Any, peer: KubeApiPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.token = "another"  # noqa: S105 - of a test
    done = run("plan", "--node", "n1")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "status 401" in done.output
    assert "is not known or has expired" in done.output
    peer.kubeconfig(tmp_path / "kubeconfig")
    gone = run("plan", "--node", "n7")
    assert (gone.exit_code, "knows no such node" in gone.output) == (1, True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        text = (tmp_path / "kubeconfig").read_text()
        text = text.replace(f":{peer.port}", f":{free.getsockname()[1]}")
        (tmp_path / "kubeconfig").write_text(text)
        down = run("plan", "--node", "n1")
    assert (down.exit_code, down.output.count("\n")) == (1, 1)
    assert "is this its address, and does it run?" in down.output
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    none = run("plan", "--node", "n1")
    assert (none.exit_code, "no kubeconfig" in none.output) == (2, True)


def test_options_of_a_cluster_go_with_one(run: Any, tmp_path: Path, peer: KubeApiPeer) -> None:
    file = wrote(tmp_path / "new.json", NEW)
    done = run("plan", "--machine", "1s4c2t", "--verbose", file)
    assert (done.exit_code, "--verbose goes with --from-cluster" in done.output) == (2, True)
    # With manifests and no --from-cluster a node is one of theirs.
    assert run("plan", "--node", "n1=1s4c2t", *STATIC, file).exit_code == 0
    assert run("plan").exit_code == 2
    assert peer.requests == []


def test_a_context_of_a_named_file(run: Any, peer: KubeApiPeer, tmp_path: Path) -> None:
    file = peer.kubeconfig(tmp_path / "other")
    words = ("plan", "--kubeconfig", str(file), "--node", "n1=1s8c2t", *STATIC)
    assert run(*words, "--context", "here").exit_code == 0
    wrong = run(*words, "--context", "nowhere")
    assert (wrong.exit_code, "there is no context 'nowhere'" in wrong.output) == (2, True)


def test_why_a_pod_of_the_cluster_is_rejected(run: Any, cluster: LiveCluster) -> None:
    cluster.published["n1"] = published_map("n1")
    cluster.pods.append(live_pod("big", "n1", "14", phase="Failed"))
    done = run("explain", "pod/big", "--from-cluster")
    assert done.exit_code == 0, done.output
    assert "big" in done.output
    assert "rejected" in done.output
    cluster.pods.append(live_pod("waits", "", "2", phase="Pending", started=""))
    nowhere = run("explain", "pod/waits", "--from-cluster")
    assert (nowhere.exit_code, "is on no node yet" in nowhere.output) == (1, True)
    there = run("explain", "pod/waits", "--from-cluster", "--node", "n1")
    assert there.exit_code == 0, there.output
    assert "waits" in there.output


def test_a_credential_plugin_that_fails_is_no_wrong_command_line(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    document = yaml.safe_load(file.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    for command, status in (("false", 1), ("there-is-no-such-program", 2)):
        for user in document["users"]:
            user["user"] = {"exec": {**plugin, "command": command}}
        file.write_text(json.dumps(document))
        result = run("plan", "--node", "n1", *STATIC)
        assert (result.exit_code, result.stdout) == (status, "")
        assert command in result.stderr
