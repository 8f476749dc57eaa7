"""MemoryQoS with a container runtime: what it is told, and what pods have above its containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.cgroup.runtime.protection import PodProtection
from pinfold.adapters.cri import CgroupDriver, pod_cgroup_parent
from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import V1_34, V1_36, KubeletVersion
from pinfold.core.memory.protection import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, memory_qos
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.workload import Process
from pinfold.core.values.quantity import Quantity
from pinfold.linux.cgroup_mounts import CgroupMount
from pinfold.node.pods.limits import PodLimits
from pinfold.node.settings import NodeSettings
from pinfold.ports.cgroups import Placement
from tests.scenes.cri_peer import a_container, peer, runtime_on
from tests.scenes.runtime_contract import a_spec, play

MIB = 1 << 20
HIGH = str((64 + 32) * MIB)
TIERED = "TieredReservation"


def amounts(memory: str, cpu: str = "1") -> dict[str, Quantity]:
    return {"cpu": Quantity.parse(cpu), "memory": Quantity.parse(memory)}


BURSTABLE = Pod("b", "b", containers=(Container("main", amounts("64Mi"), amounts("128Mi")),))
GUARANTEED = Pod("g", "g", containers=(Container("main", amounts("32Mi"), amounts("32Mi")),))


def placement(
    pod: Pod, version: KubeletVersion, policy: str = "None", *, gate: bool = True
) -> Placement:
    config = NodeConfig(
        feature_gates={"MemoryQoS": gate},
        kubelet_version=version,
        memory_reservation_policy=policy,
        memory_throttling_factor=0.5,
    )
    limits = PodLimits(pod, NodeSettings(memory_qos=memory_qos(config, None)))
    return Placement(
        limits=limits.of_container(pod.containers[0], exclusive=False),
        pod_limits=limits.of_pod(exclusive=False),
    )


def told(where: Placement, *, protects_memory: bool) -> dict[str, str]:
    """The files of ``unified`` in the request that a runtime gets."""
    requests: list[pb.CreateContainerRequest] = []
    created = a_container("new", pb.ContainerState.CONTAINER_CREATED)

    async def create(request: bytes) -> bytes:
        requests.append(pb.CreateContainerRequest.FromString(request))
        return pb.CreateContainerResponse(container_id="new").SerializeToString()

    async def listing(_: bytes) -> bytes:
        found = [created] if requests else []
        return pb.ListContainersResponse(containers=found).SerializeToString()

    async def status(_: bytes) -> bytes:
        found = pb.ContainerStatus(
            id="new", state=created.state, labels=created.labels, annotations=created.annotations
        )
        return pb.ContainerStatusResponse(status=found).SerializeToString()

    async def case() -> None:
        sandbox = pb.RunPodSandboxResponse(pod_sandbox_id="s").SerializeToString()
        async with (
            peer(
                ListPodSandbox=b"",
                Status=b"",
                RunPodSandbox=sandbox,
                CreateContainer=create,
                ListContainers=listing,
                ContainerStatus=status,
            ) as runtime,
            runtime_on(runtime, protects_memory=protects_memory) as containers,
        ):
            spec = a_spec(Process(("true",), image="x:1"))
            await containers.create(replace(spec, placement=where))

    play(case())
    (request,) = requests
    return dict(request.config.linux.resources.unified)


@pytest.mark.parametrize(
    ("pod", "version", "policy", "files"),
    [
        (BURSTABLE, V1_34, "None", {MEMORY_MIN: str(64 * MIB), MEMORY_HIGH: HIGH}),
        (BURSTABLE, V1_36, TIERED, {MEMORY_LOW: str(64 * MIB), MEMORY_HIGH: HIGH}),
        (BURSTABLE, V1_36, "None", {MEMORY_MIN: "0", MEMORY_LOW: "0", MEMORY_HIGH: HIGH}),
        (GUARANTEED, V1_34, "None", {MEMORY_MIN: str(32 * MIB)}),
        (GUARANTEED, V1_36, TIERED, {MEMORY_MIN: str(32 * MIB)}),
        (GUARANTEED, V1_36, "None", {MEMORY_MIN: "0", MEMORY_LOW: "0"}),
    ],
)
def test_a_container_is_created_with_what_a_kubelet_of_its_version_says(
    pod: Pod, version: KubeletVersion, policy: str, files: dict[str, str]
) -> None:
    where = placement(pod, version, policy)
    assert told(where, protects_memory=True) == files
    # With cgroup v1 a runtime refuses who has such files.
    assert told(where, protects_memory=False) == {}


def test_without_the_gate_a_runtime_is_told_nothing() -> None:
    where = placement(BURSTABLE, V1_36, TIERED, gate=False)
    assert told(where, protects_memory=True) == {}


@pytest.mark.parametrize("driver", list(CgroupDriver))
def test_pods_and_the_cgroup_above_them_are_protected_while_there_are_any(
    tmp_path: Path, driver: CgroupDriver
) -> None:
    def parent(uid: str) -> str:
        return pod_cgroup_parent("pinfold", uid, driver)

    mount = CgroupMount(tmp_path, "/", writable=True)
    pods = {uid: tmp_path / parent(uid).lstrip("/") for uid in ("b", "g", "e")}
    base = pods["b"].parent
    for folder in (base, *pods.values()):
        folder.mkdir()
        for file, value in ((MEMORY_MIN, "0"), (MEMORY_LOW, "0"), (MEMORY_HIGH, "max")):
            (folder / file).write_text(value)
        (folder / "io.weight").write_text("default 70\n")

    def has(folder: Path) -> list[int]:
        return [int((folder / file).read_text()) for file in (MEMORY_MIN, MEMORY_LOW)]

    # A digit each: a file of the kernel has what was written last, one of a disk what is behind it.
    last = replace(BURSTABLE, containers=(Container("main", amounts("4"), amounts("9")),))
    kept = replace(GUARANTEED, containers=(Container("main", amounts("2"), amounts("2")),))
    protection = PodProtection(2, mount, parent)
    assert protection.put("e", Placement()) == []
    assert protection.put("b", placement(last, V1_36, TIERED)) == []
    assert protection.put("g", placement(kept, V1_36, TIERED)) == []
    assert [has(one) for one in (pods["b"], pods["g"], pods["e"], base)] == [
        [0, 4],
        [2, 0],
        [0, 0],
        [2, 4],
    ]
    # As another version has it, which an agent may be after a restart.
    protection.put("b", placement(last, V1_34))
    assert (has(pods["b"]), has(base)) == ([4, 0], [6, 0])
    protection.put("b", placement(last, V1_36, "None"))
    assert (has(pods["b"]), has(base)) == ([0, 0], [2, 0])
    protection.forget("g")
    assert (has(pods["g"]), has(base)) == ([0, 0], [0, 0])
    protection.forget("gone")
    assert (base / "io.weight").read_text() == "default 70\n"
    assert (pods["b"] / MEMORY_HIGH).read_text() == "max"


def test_what_protects_too_little_above_is_told(tmp_path: Path) -> None:
    pod = tmp_path / "above/pinfold/podb"
    pod.mkdir(parents=True)
    for folder in (pod, pod.parent, pod.parent.parent):
        for file in (MEMORY_MIN, MEMORY_LOW):
            (folder / file).write_text("0")
    protection = PodProtection(2, CgroupMount(tmp_path, "/", writable=True), _above)
    assert protection.put("b", placement(BURSTABLE, V1_34)) == [
        f"memory.min is in force for 0 bytes of {64 * MIB}: {tmp_path}/above/memory.min is 0"
    ]


def _above(uid: str) -> str:
    return f"/above/pinfold/pod{uid}"


def test_cgroup_v1_lacks_the_files_and_it_is_told_once_each(tmp_path: Path) -> None:
    protection = PodProtection(1, CgroupMount(tmp_path, "/", writable=True), _above)
    assert protection.put("b", placement(BURSTABLE, V1_34)) == [
        f"memory.min {64 * MIB} is not in force: needs cgroup v2",
        f"memory.high {HIGH} is not in force: needs cgroup v2",
    ]
    protection.forget("b")
    assert list(tmp_path.iterdir()) == []
