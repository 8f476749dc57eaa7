"""What the cgroups of a pod and its containers are limited to."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pinfold.core.kubelet.own_policies import IOWeights
from pinfold.core.memory.protection import MemoryQoS, Protection, Reservation
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Pod
from pinfold.node.pods.limits import PodLimits
from pinfold.node.settings import NodeSettings

MIB = 1 << 20
SETTINGS = NodeSettings(
    machine_memory=64 << 30,
    memory_qos=MemoryQoS(Reservation.TIERED, 0.5, 64 << 30),
    pod_pids_limit=70,
    io_weights=IOWeights(guaranteed=500, best_effort=10),
)


def pod(*containers: dict[str, Any], **annotations: str) -> Pod:
    spec = [
        {"name": f"c{number}", "resources": resources}
        for number, resources in enumerate(containers)
    ]
    keys = {f"{name.replace('_', '-')}.pinfold.dev/pod": said for name, said in annotations.items()}
    return apply_defaults(
        pod_from_api({"metadata": {"name": "p", "annotations": keys}, "spec": {"containers": spec}})
    )


def same(**amounts: str) -> dict[str, Any]:
    return {"requests": amounts, "limits": amounts}


def test_a_pod_saves_what_its_containers_save() -> None:
    one = pod(same(cpu="500m"), same(cpu="250m"), cpu_burst="40%")
    limits = PodLimits(one, SETTINGS)
    bursts = [limits.of_container(c, exclusive=False).cpu_burst for c in one.containers]
    assert bursts == [20_000, 10_000]
    assert limits.of_pod(exclusive=False).cpu_burst == 30_000


def test_without_a_quota_nothing_is_saved() -> None:
    owner = pod(same(cpu="1", memory="1Gi"), cpu_burst="40%")
    (container,) = owner.containers
    assert PodLimits(owner, SETTINGS).of_container(container, exclusive=True).cpu_burst is None
    assert PodLimits(owner, SETTINGS).of_pod(exclusive=True).cpu_burst is None
    free = pod({"requests": {"cpu": "1"}}, cpu_burst="40%")
    assert (
        PodLimits(free, SETTINGS).of_container(free.containers[0], exclusive=False).cpu_burst
        is None
    )
    assert PodLimits(free, SETTINGS).of_pod(exclusive=False).cpu_burst is None


def test_memory_processes_and_io_are_by_class() -> None:
    guaranteed = pod(same(cpu="1", memory="1Mi"))
    (container,) = guaranteed.containers
    whole = PodLimits(guaranteed, SETTINGS).of_pod(exclusive=False)
    assert (whole.protection, whole.pids, whole.io_weight) == (Protection(min=MIB), 70, 500)
    best_effort = pod({})
    (container,) = best_effort.containers
    whole = PodLimits(best_effort, SETTINGS).of_pod(exclusive=False)
    assert (whole.protection, whole.pids, whole.io_weight) == (Protection(), 70, 10)
    burstable = pod({"requests": {"memory": "1Mi"}, "limits": {"memory": "3Mi"}})
    (container,) = burstable.containers
    limits = PodLimits(burstable, SETTINGS)
    assert limits.of_pod(exclusive=False).io_weight is None
    own = limits.of_container(container, exclusive=False)
    assert own.protection == Protection(low=MIB, high=2 * MIB)


def test_nothing_is_wished_of_a_plain_node() -> None:
    one = pod(same(cpu="1", memory="1Mi"))
    (container,) = one.containers
    limits = PodLimits(one, NodeSettings())
    for found in (
        limits.of_pod(exclusive=False),
        limits.of_container(container, exclusive=False),
    ):
        assert found.protection == Protection()
        assert [found.pids, found.io_weight, found.cpu_burst or None] == [None] * 3


def test_who_has_no_memory_limit_is_not_slowed_down() -> None:
    one = pod({"requests": {"memory": "1Mi"}, "limits": {"memory": "3Mi"}})
    unlimited = Pod(
        one.uid,
        one.name,
        containers=one.containers,
        annotations={"pinfold.dev/memory-limit": "none"},
    )
    own = PodLimits(unlimited, SETTINGS).of_container(one.containers[0], exclusive=False)
    assert own.protection == Protection(low=MIB)
    assert own.memory is None


def test_with_the_gate_off_owners_have_a_quota() -> None:
    owner = pod(same(cpu="2", memory="1Gi"))
    (container,) = owner.containers
    for uncap, quota in ((True, -1), (False, 200_000)):
        limits = PodLimits(owner, replace(SETTINGS, uncap_owners=uncap))
        assert limits.of_container(container, exclusive=True).cpu_quota == quota
        assert limits.of_pod(exclusive=True).cpu_quota == quota
        assert limits.of_container(container, exclusive=False).cpu_quota == 200_000
