"""Events, comparisons and what is published, at an API server that also fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.kubernetes.access import KubernetesError, from_kubeconfig
from pinfold.adapters.kubernetes.client import OPERATIONS, KubeClient
from pinfold.adapters.kubernetes.events import EventRecorder, Involved, rejection
from pinfold.adapters.kubernetes.node_publisher import NodePublisher
from pinfold.adapters.kubernetes.pod_checks import PodChecks
from pinfold.adapters.kubernetes.spec_check import Decided, differences
from pinfold.core.cgroup_values import container_cgroup
from pinfold.core.cpuset import CPUSet
from pinfold.core.node_config import NodeConfig
from pinfold.core.pod import QOSClass, apply_defaults, guaranteed_cpus
from pinfold.core.pod_api import pod_from_api
from pinfold.core.short_form import parse_short_form
from pinfold.node.node_status import NodeStatus, node_status
from pinfold.node.runtime_view import Resources
from pinfold.node.seen_pods import EXCLUSIVE
from pinfold.planning.planner import Planner
from tests.kube_api_peer import (
    Answer,
    Certificates,
    KubeApiPeer,
    Request,
    make_certificates,
    refusal,
    serving,
)
from tests.nri_peer import until

DB = Involved("db", "uid-db", "default", "main")
REFUSED = "SMTAlignmentError"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


class Reports(list[str]):
    """Problems that were told."""

    def of_pod(self, pod: str | None, problem: str) -> None:
        self.append(f"{pod}: {problem}")


@asynccontextmanager
async def at_work(*runs: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def connected(peer: KubeApiPeer, folder: Path) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig(peer.kubeconfig(folder / "config")), timeout=0.5)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def recording(
    peer: KubeApiPeer, folder: Path, period: float = 60
) -> AsyncIterator[tuple[EventRecorder, Reports]]:
    async with connected(peer, folder) as client:
        reports = Reports()
        recorder = EventRecorder(client, "n1", reports.append, period=period)
        async with at_work(recorder.run()):
            yield recorder, reports


def failing(status: int, method: str = "") -> Callable[[Request], Answer | None]:
    return lambda request: (
        (status, refusal(status, "no")) if method in ("", request.method) else None
    )


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


# ------------------------------------------------------------------------------------ comparisons


def pod(cpu: str = "2", memory: str = "64Mi", **fields: Any) -> dict[str, Any]:
    """An API pod of one container; ``fields`` go to metadata, spec and status by their prefix."""
    resources = {"limits": {"cpu": cpu, "memory": memory}} if cpu else {}
    found: dict[str, Any] = {
        "metadata": {"name": "db", "namespace": "default", "uid": "uid-db"},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
        "status": {},
    }
    for name, value in fields.items():
        part, _, key = name.partition("_")
        found[part][key] = value
    return found


def decided(manifest: dict[str, Any], container: str = "main", **changes: Any) -> Decided:
    """What a kubelet makes of a pod, and a decision about it."""
    parsed = apply_defaults(pod_from_api(manifest))
    one = next(c for c in parsed.all_containers if c.name == container)
    values = container_cgroup(parsed, one, memory_capacity=1 << 34)
    whole = 0 if parsed.has_pod_level_resources else guaranteed_cpus(parsed, one)
    seen = Resources(
        cpu_shares=values.cpu_shares,
        cpu_quota=values.cpu_quota,
        cpu_period=values.cpu_period,
        memory=values.memory_limit,
    )
    cpus = CPUSet(range(1, 1 + whole)) if whole else None
    right = Decided("uid-db", container, parsed.qos, seen, cpus, declined=False)
    return replace(right, **changes)


def compared(manifest: dict[str, Any], what: Decided) -> tuple[str, ...]:
    return differences(manifest, what, opt_out=EXCLUSIVE, is_static=True)


SIDECAR = {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "100m"}}}
FORMS = [
    pod(),
    pod("1500m"),
    pod("333m"),
    pod("1"),
    pod(""),
    pod(spec_initContainers=[SIDECAR]),
    pod("", spec_resources={"limits": {"cpu": "2", "memory": "1Gi"}}),
    pod("1", spec_resources={"limits": {"cpu": "2", "memory": "1Gi"}}),
    pod("3m"),
]


@pytest.mark.parametrize("manifest", FORMS)
def test_a_kubelets_values_agree_with_its_pod(manifest: dict[str, Any]) -> None:
    for part in ("initContainers", "containers"):
        for container in manifest["spec"].get(part, ()):
            assert compared(manifest, decided(manifest, container["name"])) == ()


@pytest.mark.parametrize(
    ("manifest", "what", "words"),
    [
        (
            pod(),
            decided(pod(), qos=QOSClass.BURSTABLE),
            "its QoS class is Guaranteed, its cgroup is one of Burstable pods",
        ),
        (pod(status_qosClass="BestEffort"), decided(pod()), "its QoS class is BestEffort"),
        (pod("3"), decided(pod()), "means cpu.shares 3072, not 2048"),
        (pod("3"), decided(pod()), "a quota of 300000, not 200000"),
        (pod("3"), decided(pod()), "it is due 3 exclusive CPUs, and has 2"),
        (pod(memory="1Gi"), decided(pod()), "its memory limit is 1073741824, not 67108864"),
        (pod(), decided(pod(), cpus=None), "it is due 2 exclusive CPUs, and has 0"),
        (
            pod(metadata_annotations={f"{EXCLUSIVE}/pod": "false"}),
            decided(pod()),
            "it is annotated .* and was not when its sandbox was created",
        ),
        (pod(), decided(pod(), declined=True, cpus=None), "it is not annotated"),
        (pod(), decided(pod(), cpus=CPUSet([1])), "and has 1"),
        (
            pod("2", spec_resources={"limits": {"cpu": "4", "memory": "1Gi"}}),
            decided(pod()),
            "it is due 0 exclusive CPUs .resources of the pod as a whole give none., and has 2",
        ),
    ],
)
def test_what_differs_is_said(manifest: dict[str, Any], what: Decided, words: str) -> None:

    assert re.search(words, "; ".join(compared(manifest, what)))


def test_what_is_not_compared() -> None:
    wrong = decided(pod(), cpus=None, qos=QOSClass.BURSTABLE)
    another = pod()
    another["metadata"]["uid"] = "uid-of-its-successor"
    assert compared(another, wrong) == ()
    mirror = {**another["metadata"], "annotations": {"kubernetes.io/config.hash": "uid-db"}}
    assert compared({**another, "metadata": mirror}, wrong) != ()
    resizing = pod("3", status_conditions=[{"type": "PodResizePending", "status": "True"}])
    assert compared(resizing, decided(pod(), cpus=CPUSet([1, 2, 3]))) == ()
    debug = pod(spec_ephemeralContainers=[{"name": "debugger"}])
    assert compared(debug, replace(decided(pod()), container="debugger")) == ()
    assert compared(pod(), replace(decided(pod()), container="x")) == (
        "the pod has no container x",
    )
    broken = pod(status_conditions=[None, 3], spec_ephemeralContainers="x")
    assert compared(broken, decided(pod())) == ()


@asynccontextmanager
async def comparing(
    peer: KubeApiPeer, folder: Path
) -> AsyncIterator[tuple[PodChecks, EventRecorder, Reports]]:
    async with connected(peer, folder) as client:
        reports = Reports()
        events = EventRecorder(client, "n1", reports.append)
        checks = PodChecks(
            client,
            events,
            reports.of_pod,
            opt_out=EXCLUSIVE,
            is_static=True,
            delay=0.01,
            again=0.05,
        )
        async with at_work(events.run(), checks.run()):
            yield checks, events, reports


def test_a_difference_is_told_once_it_lasts(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.put_pod(pod())

    async def scenario() -> None:
        async with comparing(peer, tmp_path) as (checks, events, reports):
            checks.check("default", "db", decided(pod()))
            await until(lambda: checks.checked == 1)
            checks.check("default", "db", decided(pod(), cpus=None))
            await until(lambda: checks.checked == 3)
            told = (
                "default/db: container main was decided about by what the runtime shows, and the "
                "API server's pod differs: it is due 2 exclusive CPUs, and has 0"
            )
            assert reports == [told]
            await until(lambda: events.sent == 1)
            assert checks.differing == 1

    asyncio.run(scenario())
    assert peer.events()[0]["reason"] == "CPUDecisionDiffers"


def test_a_difference_that_passes_is_none(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.put_pod(pod("3"))

    async def scenario() -> None:
        async with comparing(peer, tmp_path) as (checks, _, reports):
            checks.check("default", "db", decided(pod()))
            await until(lambda: checks.checked == 1)
            peer.put_pod(pod())
            await until(lambda: checks.checked == 2)
            await asyncio.sleep(0.1)
            assert (reports, checks.differing, checks.checked) == ([], 0, 2)

    asyncio.run(scenario())


def test_comparing_waits_for_a_server_and_not_for_pods(peer: KubeApiPeer, tmp_path: Path) -> None:
    peer.failing = failing(503)

    async def scenario() -> None:
        async with comparing(peer, tmp_path) as (checks, _, reports):
            checks.check("default", "gone", decided(pod()))
            checks.check("default", "db", replace(decided(pod()), pod_uid="forgotten"))
            checks.forget("forgotten")
            await until(lambda: checks.problem)
            peer.failing = lambda _: None
            await until(lambda: checks.checked == 1)
            assert checks.problem == ""
            assert len(reports) == 1
            peer.failing = lambda _: (200, {"metadata": 3})
            checks.check("default", "db", decided(pod()))
            await until(lambda: checks.checked == 2)
            assert "metadata: must be a mapping" in reports[-1]

    asyncio.run(scenario())
    assert peer.of("GET", "/pods/db") != []


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
    peer.put_pod(pod())
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

    asyncio.run(scenario())
    table = {one for operations in OPERATIONS.values() for one in operations}
    assert {request.operation for request in peer.requests} == table
