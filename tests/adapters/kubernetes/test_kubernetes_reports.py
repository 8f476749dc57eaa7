"""Events and what is published, at an API server that also fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.adapters.kubernetes.client import OPERATIONS, KubeClient
from pinfold.adapters.kubernetes.events import EventRecorder, Involved, rejection
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.adapters.kubernetes.node_publisher import NodePublisher
from pinfold.adapters.kubernetes.start_up_taint import StartUpTaint
from pinfold.admission.node_status import NodeStatus, node_status
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Planner
from pinfold.ports.kubernetes import KubernetesError
from tests.scenes.kube_api_peer import (
    Answer,
    Certificates,
    KubeApiPeer,
    Reports,
    Request,
    at_work,
    connected,
    failing,
    make_certificates,
    refusal,
    serving,
)
from tests.scenes.waiting import until

DB = Involved("db", "uid-db", "default", "main")
REFUSED = "SMTAlignmentError"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


@asynccontextmanager
async def recording(
    peer: KubeApiPeer, folder: Path, period: float = 60
) -> AsyncIterator[tuple[EventRecorder, Reports]]:
    async with connected(peer, folder) as client:
        reports = Reports()
        recorder = EventRecorder(client, "n1", reports.append, period=period)
        async with at_work(recorder.run()):
            yield recorder, reports


# ----------------------------------------------------------------------------------------- events


def test_a_refusal_is_an_event_of_the_pod(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with recording(peer, tmp_path) as (recorder, reports):
            recorder.record(DB, *rejection("SMTAlignmentError: Number of CPUs: 1"))
            await until(lambda: recorder.sent == 1)
        assert reports == []

    asyncio.run(scenario())
    event = peer.events()[0]
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "db",
        "namespace": "default",
        "uid": "uid-db",
        "fieldPath": "spec.containers{main}",
    }
    assert (event["type"], event["reason"]) == ("Warning", REFUSED)
    assert (event["message"], event["count"]) == ("Number of CPUs: 1", 1)
    assert event["source"] == {"component": "pinfold", "host": "n1"}
    assert event["reportingComponent"] == "pinfold"
    assert event["firstTimestamp"].endswith("Z")


def test_a_crash_loop_is_one_event_with_a_count(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with recording(peer, tmp_path, period=0.3) as (recorder, _):
            for number in range(100):
                recorder.record(DB, REFUSED, f"attempt {number}")
                await asyncio.sleep(0.001)
            await until(lambda: recorder.pending == 0)
            recorder.record(replace(DB, uid="other"), REFUSED, "another pod")
            recorder.record(DB, "TopologyAffinityError", "another reason")
            await until(lambda: recorder.pending == 0)

    asyncio.run(scenario())
    assert len(peer.of("POST")) == 3
    assert 1 <= len(peer.of("PATCH")) <= 2, "at most once a period"
    first = peer.events()[0]
    assert (first["count"], first["message"]) == (100, "attempt 99")


def test_an_event_that_the_server_has_forgotten_is_written_anew(
    peer: KubeApiPeer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with recording(peer, tmp_path, period=0.01) as (recorder, _):
            recorder.record(DB, REFUSED, "one")
            await until(lambda: recorder.pending == 0)
            peer.objects.clear()
            recorder.record(DB, REFUSED, "two")
            await until(lambda: recorder.pending == 0)

    asyncio.run(scenario())
    assert [(event["message"], event["count"]) for event in peer.events()] == [("two", 2)]


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_server_in_trouble_is_told_later(peer: KubeApiPeer, tmp_path: Path, status: int) -> None:
    peer.failing = failing(status)

    async def scenario() -> None:
        async with recording(peer, tmp_path) as (recorder, reports):
            for _ in range(50):
                recorder.record(DB, REFUSED, "again")
            await until(lambda: recorder.problem)
            peer.failing = lambda _: None
            await until(lambda: recorder.pending == 0)
            assert recorder.problem == ""
        assert len(reports) == 1
        assert f"status {status}" in reports[0]

    asyncio.run(scenario())
    assert [event["count"] for event in peer.events()] == [50]


def test_one_that_the_server_never_takes_holds_nobody_up(peer: KubeApiPeer, tmp_path: Path) -> None:
    def ending(request: Request) -> Answer | None:
        return (403, refusal(403, "namespace ends")) if "/ending/" in request.path else None

    peer.failing = ending

    async def scenario() -> None:
        async with recording(peer, tmp_path) as (recorder, reports):
            recorder.record(replace(DB, namespace="ending"), REFUSED, "never")
            recorder.record(DB, REFUSED, "well")
            await until(lambda: recorder.pending == 0)
            assert (recorder.sent, recorder.dropped) == (1, 1)
        assert "namespace ends" in reports[0]

    asyncio.run(scenario())
    assert [event["message"] for event in peer.events()] == ["well"]


def test_names_and_texts_that_are_too_long(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with recording(peer, tmp_path) as (recorder, _):
            recorder.record(replace(DB, name="a" * 229 + "." * 24), REFUSED, "x" * 5000)
            await until(lambda: recorder.sent == 1)

    asyncio.run(scenario())
    assert len(peer.events()[0]["message"]) == 1024


def test_an_event_on_the_node(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with recording(peer, tmp_path) as (recorder, _):
            recorder.record(Involved("n1", "n1"), "NotPinningCPUs", "static")
            await until(lambda: recorder.sent == 1)

    asyncio.run(scenario())
    event = peer.events()[0]
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n1",
        "uid": "n1",
    }


def test_the_queue_has_an_end(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(peer, tmp_path) as client:
            recorder = EventRecorder(client, "n1", Reports().append)
            for number in range(1010):
                recorder.record(replace(DB, uid=str(number)), REFUSED, "no")
            assert (recorder.pending, recorder.dropped) == (1000, 10)

    asyncio.run(scenario())


def test_texts_of_refusals() -> None:
    assert rejection("TopologyAffinityError: Resources cannot") == (
        "TopologyAffinityError",
        "Resources cannot",
    )
    assert rejection("no word: here") == ("UnexpectedAdmissionError", "no word: here")


# ----------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b"garbage"), "is no JSON object"),
        ((200, []), "is no JSON object"),
        ((500, b"\xff" * 1000), "status 500"),
        ((403, refusal(403, "not allowed")), "status 403: 'not allowed'.*rights of deploy"),
        ((200, b"[" * 100_000), "is no JSON object"),
        ((302, {}), "status 302"),
    ],
)
def test_answers_that_are_of_no_use(
    peer: KubeApiPeer, tmp_path: Path, answer: Answer, words: str
) -> None:
    peer.failing = lambda _: answer

    async def scenario() -> None:
        async with connected(peer, tmp_path) as client:
            with pytest.raises(KubernetesError, match=words) as error:
                await client.get_pod("default", "db")
            assert f"{peer.server}: GET /api/v1/namespaces/default/pods/db: " in str(error.value)

    asyncio.run(scenario())


def test_a_server_that_is_silent_or_gone(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def scenario() -> None:
        access = from_kubeconfig(peer.kubeconfig(tmp_path / "config"))
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = KubeClient(replace(access, server=f"http://127.0.0.1:{port}"), timeout=0.2)
        with pytest.raises(KubernetesError, match=r"(?i)no answer within 0.2 s|timeout"):
            await client.get_pod("default", "db")
        server.close()
        await client.close()
        client = KubeClient(replace(access, server=f"http://127.0.0.1:{port}"), timeout=0.2)
        with pytest.raises(KubernetesError, match="connection"):
            await client.get_pod("default", "db")
        await client.close()

    asyncio.run(scenario())


def test_a_name_is_no_path(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(peer, tmp_path) as client:
            with pytest.raises(KubernetesError, match="status 404"):
                await client.get_pod("default", "../nodes/n1?x")
        assert peer.requests[0].path.endswith("/pods/..%2Fnodes%2Fn1%3Fx")

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------- the node


def status_of(config: NodeConfig) -> NodeStatus:
    planner = Planner(parse_short_form("2s2c2t"), config)
    return node_status(planner.machine, planner.view, config, planner.node, planner.empty)


def test_labels_and_topology_follow_the_node(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.put_node("n1")
    place = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    now = [status_of(config)]

    async def status() -> NodeStatus:
        return now[0]

    async def scenario() -> None:
        async with connected(peer, tmp_path) as client:
            reports = Reports()
            peer.failing = failing(403, "PATCH")
            publisher = NodePublisher(
                client, "n1", status, reports.append, labels=True, topology=True, period=0.01
            )
            async with at_work(publisher.run()):
                await until(lambda: publisher.problem)
                peer.failing = lambda _: None
                await until(lambda: place in peer.objects)
                await asyncio.sleep(0.1)
                assert len(peer.of("PATCH")) == 3, "nothing has changed since"
                now[0] = status_of(replace(config, reserved_system_cpus=CPUSet([0, 1])))
                await until(lambda: len(peer.of("PATCH")) == 5)
                assert publisher.problem == ""
            assert len(reports) == 1
            assert "rights of deploy/kubernetes" in reports[0]

    asyncio.run(scenario())
    labels = peer.objects["/api/v1/nodes/n1"]["metadata"]["labels"]
    assert labels["kubernetes.io/os"] == "linux"
    assert not {name for name in labels if "policy-option" in name}
    assert labels["pinfold.dev/cpu-manager-policy"] == "static"
    assert labels["pinfold.dev/exclusive-cpus"] == "6"
    topology = peer.objects[place]
    assert topology["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}
    ]
    assert topology["zones"]


def test_every_request_of_the_table_was_seen_and_no_other(
    peer: KubeApiPeer, tmp_path: Path
) -> None:
    """The methods of the client, one by one."""
    peer.put_pod({"metadata": {"name": "db"}})
    peer.put_node("n1")

    async def scenario() -> None:
        async with connected(peer, tmp_path) as client:
            await client.get_pod("default", "db")
            event = {
                "kind": "Event",
                "metadata": {"name": "e", "namespace": "default"},
                "involvedObject": {"namespace": "default"},
                "message": "",
                "reason": "",
            }
            await client.create_event("default", event)
            await client.patch_event("default", "e", {"count": 2})
            await client.get_node("n1")
            await client.label_node("n1", {"a": "b"})
            await client.apply_topology({"kind": "X", "metadata": {"name": "n1"}})
            await client.apply_published({"kind": "X", "metadata": {"name": "n1"}})

    asyncio.run(scenario())
    table = {one for operations in OPERATIONS.values() for one in operations}
    assert {request.operation for request in peer.requests} == table


# ------------------------------------------------------------------------------ the start-up taint

TAINT = "pinfold.dev/agent-not-ready"
OTHERS = [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]


class TaintScene:
    """A node with taints, and an agent that is at work or not."""

    def __init__(self, peer: KubeApiPeer) -> None:
        self.peer = peer
        self.at_work = False
        self.removals = 0
        self.reports = Reports()
        peer.put_node("n1")
        self.set_taints([*OTHERS, {"key": TAINT, "effect": "NoSchedule"}])

    @property
    def node(self) -> dict[str, Any]:
        return self.peer.objects["/api/v1/nodes/n1"]

    def set_taints(self, taints: list[dict[str, str]]) -> None:
        self.node["spec"] = {"taints": taints}

    def removed(self) -> None:
        self.removals += 1

    def taint(self, client: KubeClient) -> StartUpTaint:
        return StartUpTaint(
            client,
            "n1",
            TAINT,
            ready=lambda: self.at_work,
            removed=self.removed,
            report=self.reports.append,
            period=0.05,
        )


def test_the_taint_of_a_new_node_goes_when_the_agent_is_at_work(
    peer: KubeApiPeer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        scene = TaintScene(peer)
        async with connected(peer, tmp_path) as client, at_work(scene.taint(client).run()):
            await asyncio.sleep(0.3)
            assert peer.requests == [], "nothing is asked before"
            scene.at_work = True
            await until(lambda: scene.removals == 1)
            assert scene.node["spec"]["taints"] == OTHERS
            # The node was deleted, and its kubelet has registered it anew.
            scene.set_taints([{"key": TAINT, "effect": "NoSchedule"}])
            await until(lambda: scene.removals == 2)
            assert scene.node["spec"]["taints"] == []
            patches = len(peer.of("PATCH"))
            await until(lambda: len(peer.of("GET")) > 4)
            assert len(peer.of("PATCH")) == patches, "what is not there is not removed"
            assert scene.reports == []

    asyncio.run(scenario())


def test_a_node_that_somebody_else_changes_meanwhile_keeps_that(
    peer: KubeApiPeer, tmp_path: Path
) -> None:
    late = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}

    async def scenario() -> None:
        scene = TaintScene(peer)

        def between(request: Request) -> None:
            if request.method == "PATCH" and late not in scene.node["spec"]["taints"]:
                scene.node["spec"]["taints"].append(late)
                scene.node["metadata"]["resourceVersion"] = "7"

        peer.failing = between
        scene.at_work = True
        async with connected(peer, tmp_path) as client, at_work(scene.taint(client).run()):
            await until(lambda: scene.removals == 1)
        assert scene.node["spec"]["taints"] == [*OTHERS, late]
        assert [one.body["metadata"]["resourceVersion"] for one in peer.of("PATCH")] == ["1", "7"]
        assert scene.reports == []

    asyncio.run(scenario())


def test_a_taint_that_may_not_be_removed_is_told_once(peer: KubeApiPeer, tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = TaintScene(peer)
        peer.failing = failing(403, "PATCH")
        scene.at_work = True
        async with connected(peer, tmp_path) as client:
            taint = scene.taint(client)
            async with at_work(taint.run()):
                await until(lambda: len(peer.of("PATCH")) == 2)
                (told,) = scene.reports
                assert told.startswith(f"the taint {TAINT} of the node was not removed: ")
                assert "give this account the rights of deploy/kubernetes" in told
                assert taint.problem
                peer.failing = lambda _: None
                await until(lambda: scene.removals == 1)
                await until(lambda: not taint.problem)

    asyncio.run(scenario())
