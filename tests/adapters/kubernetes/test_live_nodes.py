"""What is read of the nodes of a cluster: lists in parts, bounds, and whatever a server answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.adapters.kubernetes.connection import Asked
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.adapters.kubernetes.live_nodes import ReadNodes, Wanted, in_order, read_nodes
from pinfold.adapters.kubernetes.live_reads import READS
from pinfold.adapters.kubernetes.manifests import ManifestError, read_manifests
from pinfold.adapters.kubernetes.published_node import Published, config_map, published_of
from pinfold.adapters.kubernetes.resource_topology import topology_machine
from pinfold.adapters.machines.source import read_document
from pinfold.ports.kubernetes import NODES, PODS, KubernetesError
from tests.cluster.api_server.__main__ import kubeconfig
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.roots import ROOT
from tests.scenes.kube_api_peer import Certificates, KubeApiPeer, make_certificates, serving
from tests.scenes.live_cluster import LiveCluster, live_node, live_pod

PAGE = ROOT / "docs" / "how-to" / "plan-a-live-node.md"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


def read(file: Path, *names: str, timeout: float = 5.0) -> tuple[ReadNodes, Any]:
    heard: list[Asked] = []
    found = asyncio.run(
        read_nodes(from_kubeconfig(file), Wanted(names), heard.append, timeout=timeout)
    )
    return found, heard


def test_a_list_in_parts_that_the_server_forgets(tmp_path: Path) -> None:
    """The server is the one that behaves as Kubernetes' own: 410 for the rest of an old list."""

    async def main() -> tuple[ReadNodes, list[tuple[str, str]]]:
        api = ApiServer()
        api.cluster.create(NODES, live_node("n1"))
        for number in range(1200):
            pod = live_pod(f"p{number}", "n1" if number % 2 else "n2")
            del pod["metadata"]["resourceVersion"]
            api.cluster.create(PODS, pod)
        lists = 0

        def compacted(_method: str, path: str) -> None:
            nonlocal lists
            lists += path.endswith("/pods")
            if lists == 2 and path.endswith("/pods"):
                api.cluster.create(PODS, live_pod("late", "n1"))
                api.cluster.compact()

        api.stands_in = compacted
        async with running(api):
            access = from_kubeconfig(kubeconfig(api, tmp_path / "config"))
            found = await read_nodes(access, Wanted(("n1",)), lambda _: None)
        return found, api.requests

    found, requests = asyncio.run(main())
    (node,) = found.nodes
    names = {pod["metadata"]["name"] for pod in node.pods}
    assert names == {"late", *(f"p{number}" for number in range(1, 1200, 2))}
    assert len(node.pods) == 601
    # The first part, the rest that is forgotten, and one list of now.
    assert [path for _, path in requests].count("/api/v1/pods") == 3


def test_a_hundred_nodes_are_read_beside_each_other(peer: KubeApiPeer, tmp_path: Path) -> None:
    cluster = LiveCluster()
    for number in range(100):
        name = f"n{number}"
        cluster.node(name, *(live_pod(f"{name}-{one}", name) for one in range(3)))
    at_once = most = 0

    def answer(request: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.01)
        at_once -= 1
        return cluster.answer(request, peer.token)

    peer.failing = answer
    found, heard = read(peer.kubeconfig(tmp_path / "config"), timeout=30.0)
    assert len(found.nodes) == 100
    assert all(len(node.pods) == 3 for node in found.nodes)
    assert len(heard) == 1 + 2 * 100
    assert 1 < most <= 16


def test_the_order_of_admission() -> None:
    began = [f"2026-03-01T0{hour}:00:00Z" for hour in range(5)]
    pods = [
        live_pod("waits", "n", started="", phase="Pending", created=began[0]),
        live_pod("second", "n", started=began[3], created=began[0]),
        live_pod("first", "n", started=began[2], created=began[1]),
        live_pod("newest", "n", started="", phase="Pending", created=began[4]),
    ]
    ordered = in_order(pods)
    assert [one["metadata"]["name"] for one in ordered] == ["first", "second", "waits", "newest"]
    times = [one["metadata"]["creationTimestamp"] for one in ordered]
    assert times == sorted(times)


def test_a_static_pod_has_the_uid_of_its_kubelet() -> None:
    static = live_pod("etcd-n", "n", annotations={"kubernetes.io/config.mirror": "0011aabb"})
    [pod] = in_order([static])
    assert pod["metadata"]["uid"] == "0011aabb"


def test_pods_of_the_api_are_read_without_a_word(tmp_path: Path) -> None:
    assert tmp_path
    pods = in_order([live_pod("a", "n", owner="web"), live_pod("b", "n", guaranteed=False)])
    read_ = read_manifests((), live=[("node n", one) for one in pods])
    assert [pod.name for pod in read_.pods] == ["a", "b"]
    assert read_.notes == ()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, {"kind": "Status", "message": "etcd is away"}, "status 500: 'etcd is away'"),
        (503, b"<html>no</html>", "status 503: '<html>no</html>'"),
        (200, b"<html>sign in</html>", "is it an API server"),
        (200, b'{"metadata": {}, "ite', "is it an API server"),
        (200, [], "is it an API server"),
        (200, {"metadata": {"continue": 7}}, "is it an API server"),
        (200, {"metadata": {}, "items": [None]}, "is it an API server|has no name"),
        (200, {"metadata": {}, "items": [{"metadata": {"name": 7}}]}, "has no name"),
        (200, {"metadata": {"continue": "x"}, "items": []}, "a continue token came again"),
    ],
)
def test_an_answer_that_is_none(
    peer: KubeApiPeer, tmp_path: Path, status: int, body: Any, words: str
) -> None:
    cluster = LiveCluster(other={"/api/v1/pods": (status, body)}).behind(peer)
    cluster.node("n1")
    with pytest.raises(KubernetesError, match=words) as error:
        read(peer.kubeconfig(tmp_path / "config"), "n1", timeout=60.0)
    assert "\n" not in str(error.value)


def _in_parts(number: int) -> Any:
    metadata = {"continue": f"c{number}", "resourceVersion": "7"}
    return metadata, [live_pod(f"p{number}", "n1")]


def _expires(number: int, query: str) -> Any:
    if "continue=" in query:
        return 410, {"kind": "Status", "reason": "Expired", "message": "too old"}
    metadata, items = _in_parts(number)
    return 200, {"metadata": metadata, "items": items}


def _circles(number: int, _query: str) -> Any:
    metadata, items = _in_parts(number % 3)
    return 200, {"metadata": metadata, "items": items}


def _empty(number: int, _query: str) -> Any:
    return 200, {"metadata": _in_parts(number)[0], "items": None}


def _sparse(number: int, _query: str) -> Any:
    metadata, items = _in_parts(number)
    return 200, {"metadata": metadata, "items": items}


@pytest.mark.parametrize(
    ("answer", "words", "most"),
    [
        (_expires, "expired while it was read, and again when it was begun anew", 4),
        (_circles, "goes round in circles: a continue token came again", 4),
        (_empty, "10 parts of a list with nothing in them", 10),
        (_sparse, "a list of more than 200 parts", 201),
    ],
)
def test_a_list_that_has_no_end(
    peer: KubeApiPeer, tmp_path: Path, answer: Any, words: str, most: int
) -> None:
    LiveCluster().behind(peer).node("n1")
    before, asked = peer.failing, 0

    def endless(request: Any) -> Any:
        nonlocal asked
        path, _, query = request.path.partition("?")
        if path != "/api/v1/pods":
            return before(request)
        asked += 1
        return answer(asked - 1, query)

    peer.failing = endless
    with pytest.raises(KubernetesError, match=f"/api/v1/pods: .*{words}"):
        read(peer.kubeconfig(tmp_path / "config"), "n1", timeout=60.0)
    assert asked <= most


def test_a_server_that_does_not_answer(peer: KubeApiPeer, tmp_path: Path) -> None:
    def late(_: object) -> Any:
        time.sleep(1.5)
        return 200, {}

    peer.failing = late
    with pytest.raises(KubernetesError, match=r"no answer within 0\.5 s|heard for 0\.5 s"):
        read(peer.kubeconfig(tmp_path / "config"), "n1", timeout=0.5)


def test_a_name_that_would_select_something_else(peer: KubeApiPeer, tmp_path: Path) -> None:
    cluster = LiveCluster().behind(peer)
    cluster.nodes["n1,status.phase=Running"] = live_node("n1,status.phase=Running")
    with pytest.raises(KubernetesError, match="is not the name of a node"):
        read(peer.kubeconfig(tmp_path / "config"))


def test_what_is_published_is_what_is_read() -> None:
    published = Published(b'{"version": 1}', b"{}", "2026-01-01T00:00:00Z")
    assert published_of(config_map("n1", published), "here") == published
    for broken in ({}, {"data": {"node.json": "{}"}}, {"data": 1, "binaryData": []}):
        with pytest.raises(KubernetesError, match=r"here: has no (node\.json|machine\.json\.gz)"):
            published_of(broken, "here")
    whole = config_map("n1", published)
    for packed in ("%", "eA==", whole["binaryData"]["machine.json.gz"][:16]):
        with pytest.raises(KubernetesError, match=r"here: machine\.json\.gz: "):
            published_of({**whole, "binaryData": {"machine.json.gz": packed}}, "here")


_NAMES = st.sampled_from(
    ["metadata", "items", "name", "namespace", "spec", "status", "nodeName", "kind", "uid",
     "startTime", "containers", "resources", "limits", "cpu", "annotations", "zones", "type",
     "costs", "value", "capacity", "creationTimestamp", "phase", "continue", "data"]
)  # fmt: skip
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 1 << 70)
    | st.sampled_from(["n1", "", "2", "node-0", "Node", "cpu", "Running", "2026-03-01T08:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=15)
@given(_JSON, _JSON)
def test_any_json_in_any_place_is_read_or_one_error(
    peer: KubeApiPeer, tmp_path_factory: pytest.TempPathFactory, one: Any, other: Any
) -> None:
    name = "/api/v1/nodes/n1"
    answers = [
        {name: (200, one)},
        {"/api/v1/pods": (200, one)},
        {"/api/v1/pods": (200, {"metadata": {}, "items": [one, other]})},
        {"/api/v1/pods": (200, {"metadata": {}, "items": [_over(live_pod("a", "n1"), one)]})},
        {"/api/v1/namespaces/pinfold-nodes/configmaps/n1": (200, one)},
    ]
    file = peer.kubeconfig(tmp_path_factory.getbasetemp() / "kubeconfig")
    for other_answers in answers:
        cluster = LiveCluster(other=other_answers).behind(peer)
        cluster.node("n1", live_pod("a", "n1"))
        try:
            found, _ = read(file, "n1")
            objects = [("node n1", found.nodes[0].node)]
            objects += [("node n1", pod) for pod in found.nodes[0].pods]
            read_manifests((), live=objects)
        except (KubernetesError, ManifestError) as error:
            assert str(error)  # noqa: PT017 - most are errors, not all


def _over(whole: Any, part: Any) -> Any:
    """A document with something else somewhere in it."""
    if not (isinstance(whole, dict) and isinstance(part, dict)):
        return part
    return {**whole, **{key: _over(whole.get(key), one) for key, one in part.items()}}


@given(_JSON)
def test_any_topology_is_a_machine_or_one_error(topology: Any) -> None:
    zone = {"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "2"}]}
    whole = {"zones": [zone, topology]}
    for found in (topology if isinstance(topology, dict) else {}, whole, _over(whole, topology)):
        if not isinstance(found, dict):
            continue
        try:
            read_document(topology_machine(found, name="n1"), name="n1", file="n1")
        except KubernetesError as error:
            assert "NodeResourceTopology n1" in str(error)  # noqa: PT017 - not all are errors


def test_the_roles_of_the_page_are_the_requests() -> None:
    blocks = PAGE.read_text().split("```yaml\n")[1:]
    roles = [one for block in blocks for one in yaml.safe_load_all(block.split("```")[0])]
    given_ = {
        (group, resource, verb, role["metadata"].get("namespace", ""))
        for role in roles
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {
        (one.group, one.resource, one.verb, one.namespace)
        for name, reads in READS.items()
        for one in reads
        if name != "--configz"
    }
    assert given_ == asked
    bindings = [one for one in roles if one["kind"].endswith("Binding")]
    assert [(one["kind"], one["roleRef"]["kind"], one["metadata"]) for one in bindings] == [
        (f"{role['kind']}Binding", role["kind"], role["metadata"])
        for role in roles
        if role["kind"] in {"Role", "ClusterRole"}
    ]
    assert all(one["roleRef"]["name"] == one["metadata"]["name"] for one in bindings)
    text = PAGE.read_text()
    assert "nodes/proxy" in text
    assert "as strong as `exec` in every container" in text
    assert json.dumps("nodes/proxy") not in json.dumps(roles)
