"""What was decided about against the pods of an API server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.adapters.kubernetes.events import EventRecorder
from pinfold.adapters.kubernetes.pod_checks import PodChecks
from pinfold.adapters.kubernetes.spec_check import Decided, differences
from pinfold.admission.model import build_node
from pinfold.agent.cluster import DueOnNode
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.annotations import EXCLUSIVE_CPUS
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.cgroup_values import container_cgroup
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import QOSClass, guaranteed_cpus
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.nri import Resources
from tests.scenes.kube_api_peer import (
    Certificates,
    KubeApiPeer,
    Reports,
    at_work,
    connected,
    failing,
    make_certificates,
    serving,
)
from tests.scenes.waiting import until


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def peer(certificates: Certificates) -> Iterator[KubeApiPeer]:
    with serving(certificates) as peer:
        yield peer


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


def due(scope: str = "pod", **gates: bool) -> DueOnNode:
    """A node of seven CPUs for owners."""
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0]),
        topology_manager_policy="best-effort",
        topology_manager_scope=scope,
        feature_gates=gates,
    )
    return DueOnNode(build_node(parse_short_form("1s8c1t"), config))


DUE = due()


def compared(manifest: dict[str, Any], what: Decided) -> tuple[str, ...]:
    return differences(manifest, what, due=DUE)


WHOLE = {"cpu": "6", "memory": "1Gi"}
OWN = {"cpu": "2", "memory": "64Mi"}


def whole(cpu: str = "6") -> dict[str, Any]:
    """A pod with resources of its own: main owns two of its CPUs, and log shares the others."""
    asked = WHOLE | {"cpu": cpu}
    return pod(
        spec_resources={"requests": asked, "limits": asked},
        spec_containers=[
            {"name": "main", "resources": {"limits": OWN}},
            {"name": "log", "resources": {}},
        ],
    )


NOT_DUE = "it is due 0 exclusive CPUs (resources of the pod as a whole give it none), and has 2"


@pytest.mark.parametrize(
    ("node", "manifest", "container", "cpus", "words"),
    [
        (due(PodLevelResourceManagers=True), whole(), "main", "2-3", ()),
        (due(PodLevelResourceManagers=True), whole(), "log", "4-7", ()),
        (
            due(PodLevelResourceManagers=True),
            whole(),
            "main",
            "4-7",
            ("it is due 2 exclusive CPUs, and has 4",),
        ),
        (due("container", PodLevelResourceManagers=True), whole(), "main", "2-3", ()),
        (due("container", PodLevelResourceManagers=True), whole(), "log", "", ()),
        (due(PodLevelResourceManagers=True), whole("5500m"), "main", "", ()),
        (due(), whole(), "main", "", ()),
        (
            due(),
            whole(),
            "main",
            "2-3",
            (NOT_DUE,),
        ),
    ],
)
def test_who_has_what_its_pod_has_as_a_whole_agrees(
    node: DueOnNode, manifest: dict[str, Any], container: str, cpus: str, words: tuple[str, ...]
) -> None:
    has = CPUSet.parse(cpus)
    what = decided(manifest, container, cpus=has or None, bubble=bool(has) and words != (NOT_DUE,))
    assert differences(manifest, what, node) == words


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
            pod(metadata_annotations={EXCLUSIVE_CPUS.key(): "false"}),
            decided(pod()),
            "it is annotated .* and was not when its sandbox was created",
        ),
        (pod(), decided(pod(), declined=True, cpus=None), "it is not annotated"),
        (pod(), decided(pod(), cpus=CPUSet([1])), "and has 1"),
        (
            pod("2", spec_resources={"limits": {"cpu": "4", "memory": "1Gi"}}),
            decided(pod()),
            "it is due 0 exclusive CPUs .resources of the pod as a whole give it none., and has 2",
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
            due=DUE,
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
