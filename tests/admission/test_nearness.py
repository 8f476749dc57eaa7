"""Wishes to run near a device: annotations, hints, and what becomes of them on two sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import NodeConfig
from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.nearness import near_attempts, near_refusal
from pinfold.core.cpu.static_policy import PodTransaction
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.locality import Localities
from pinfold.core.machine.machine import Machine, PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.annotation import AnnotationError
from pinfold.core.pod.annotation_values import device_names
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.near_wishes import NearWish, wishes_of
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.manager import Admission, HintProvider
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Planner


def machine(form: str = "2s8c1t") -> Machine:
    """A machine with a network card at each node, and a disk of which nobody knows where it is."""
    made = parse_short_form(form)
    cards = tuple(
        PCIFunction(f"0000:{16 + node.id:02x}:00.0", "0x020000", node.id, node.cpus, (f"eth{at}",))
        for at, node in enumerate(made.numa_nodes)
    )
    nowhere = PCIFunction("0000:ff:00.0", "0x010802", -1, made.online, ("nvme0n1",))
    return replace(made, pci=(*cards, nowhere))


def pod(annotations: Mapping[str, Any], *cpus: int) -> Pod:
    return pod_from_api(
        {
            "metadata": {"name": "p", "uid": "u", "annotations": annotations},
            "spec": {
                "containers": [
                    {
                        "name": f"c{at}",
                        "resources": {
                            kind: {"cpu": count, "memory": "1Gi"} for kind in ("limits", "requests")
                        },
                    }
                    for at, count in enumerate(cpus)
                ]
            },
        }
    )


class Scene:
    """One node, as :mod:`pinfold.admission.admission` puts its ingredients together."""

    def __init__(
        self, form: str = "2s8c1t", policy: str = "none", scope: str = "container"
    ) -> None:
        self.machine = machine(form)
        self.localities = Localities.of(self.machine)
        config = NodeConfig(
            cpu_manager_policy="static",
            reserved_system_cpus=CPUSet([0]),
            topology_manager_policy=policy,
            topology_manager_scope=scope,
        )
        self.node = Planner(self.machine, config, rules=SOUND).node
        self.free = self.machine.online
        self.notes: tuple[str, ...] = ()

    def admit(self, pod: Pod) -> tuple[Admission, dict[str, CPUSet]]:
        policy = self.node.cpu_policy
        assert policy is not None
        for attempt in near_attempts(self.node.topology_manager, self.localities, pod):
            manager = CPUManager(policy, PodTransaction(pod.uid, self.free.mask, {}))
            providers: list[HintProvider[Pod, Container]] = [manager]
            providers += attempt.providers(manager.allocations)
            admission = attempt.manager.admit(pod, pod.all_containers, providers)
            self.notes = attempt.notes
            if admission.admitted:
                break
        return admission, {name: one.cpus for name, one in manager.allocations.items()}


NEAR = "near.pinfold.dev/pod"
POLICY = "near-policy.pinfold.dev/pod"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_cpus_come_from_the_devices_node(policy: str) -> None:
    for card, near in (("eth0", "1-3"), ("eth1", "8-10"), ("11:00.0", "8-10")):
        admission, cpus = Scene(policy=policy).admit(pod({NEAR: card}, 3))
        assert admission.admitted
        assert str(cpus["c0"]) == near


def test_without_a_wish_nothing_changes() -> None:
    scene = Scene()
    (attempt,) = near_attempts(scene.node.topology_manager, scene.localities, pod({}, 2))
    assert attempt.manager is scene.node.topology_manager
    assert attempt.providers({}) == ()


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_it_spills_only_when_it_must(policy: str) -> None:
    scene = Scene(policy=policy)
    scene.free -= CPUSet(range(8, 13))
    admission, cpus = scene.admit(pod({NEAR: "eth1"}, 4))
    assert admission.admitted
    assert cpus["c0"] >= CPUSet([13, 14, 15])
    assert len(cpus["c0"]) == 4


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_preferred_wish_costs_no_admission(policy: str) -> None:
    scene = Scene(policy=policy)
    scene.free -= CPUSet(range(8, 13))
    admission, cpus = scene.admit(pod({NEAR: "eth1"}, 4))
    assert admission.admitted
    assert str(cpus["c0"]) == "1-4"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_required_wish_refuses(policy: str, scope: str) -> None:
    scene = Scene(policy=policy, scope=scope)
    wish = {NEAR: "eth1", POLICY: "required"}
    admission, cpus = scene.admit(pod(wish, 4))
    assert admission.admitted
    assert str(cpus["c0"]) == "8-11"
    scene.free -= CPUSet(range(8, 13))
    admission, _ = scene.admit(pod(wish, 4))
    assert not admission.admitted
    assert admission.reason == "TopologyAffinityError"
    if policy in {"none", "best-effort"}:
        assert admission.message == (
            "to be near eth1 is required, but only 3 of the 4 CPUs for container c0 can be had at "
            "NUMA node {1}; end what runs there, ask for fewer CPUs, or say preferred instead of "
            "required"
        )


def test_each_container_has_its_own_wish() -> None:
    wishes = {"near.pinfold.dev/container.c1": "eth1", NEAR: "eth0"}
    admission, cpus = Scene().admit(pod(wishes, 2, 2, 2))
    assert admission.admitted
    assert {name: str(one) for name, one in cpus.items()} == {"c0": "1-2", "c1": "8-9", "c2": "3-4"}


def test_several_devices_are_the_nodes_that_hold_them() -> None:
    scene = Scene("4s4c1t")
    wish = {NEAR: "eth1,eth3", POLICY: "required"}
    admission, cpus = scene.admit(pod(wish, 6))
    assert admission.admitted
    assert cpus["c0"] <= CPUSet([*range(4, 8), *range(12, 16)])
    scene.free -= CPUSet([4, 5, 12])
    admission, _ = scene.admit(pod(wish, 6))
    assert not admission.admitted
    assert "NUMA node {1,3}" in (admission.message or "")


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_several_devices_under_a_strict_policy(policy: str) -> None:
    """Each of the nodes is near enough: a strict policy can choose one of them."""
    scene = Scene("4s4c1t", policy=policy)
    scene.free -= CPUSet([4, 5])
    admission, cpus = scene.admit(pod({NEAR: "eth1,eth3", POLICY: "required"}, 3))
    assert admission.admitted
    assert str(cpus["c0"]) == "12-14"


def test_a_decision_names_the_wish() -> None:
    scene = Scene(policy="restricted")
    scene.free -= CPUSet(range(8, 13))
    admission, _ = scene.admit(pod({NEAR: "eth1", POLICY: "required"}, 4))
    assert (1, "near/eth1") in admission.decisions[0].blocking()


@pytest.mark.parametrize(
    ("device", "note"),
    [("nvme0n1", "the firmware does not say"), ("eth7", "'eth7' is no device")],
)
def test_what_nobody_knows_is_no_constraint(device: str, note: str) -> None:
    scene = Scene()
    admission, cpus = scene.admit(pod({NEAR: device}, 2))
    assert admission.admitted
    assert len(cpus["c0"]) == 2
    assert note in scene.notes[0]
    refusal = near_refusal(scene.localities, pod({NEAR: device, POLICY: "required"}, 2))
    assert refusal is not None
    assert refusal.reason == "TopologyAffinityError"
    assert note in str(refusal)
    assert near_refusal(scene.localities, pod({NEAR: device}, 2)) is None


def test_a_machine_of_too_many_nodes_is_said() -> None:
    scene = Scene("17s1c")
    admission, _ = scene.admit(pod({NEAR: "eth1"}, 1))
    assert admission.admitted
    assert "more than the 16" in scene.notes[0]


def test_a_required_wish_needs_cpus_to_place() -> None:
    scene = Scene()
    required = {NEAR: "eth0", POLICY: "required"}
    mixed = pod(required | {"near-policy.pinfold.dev/container.c1": "required"}, 2, 0)
    assert near_refusal(scene.localities, pod(required, 2), placed=["c0"]) is None
    of_one = near_refusal(scene.localities, mixed, placed=["c0"])
    assert of_one is not None
    assert "container c1 has no CPUs of its own" in str(of_one)
    without_policy = near_refusal(scene.localities, pod(required, 2))
    assert without_policy is not None
    assert "the pod has no CPUs of its own" in str(without_policy)


C0 = "near.pinfold.dev/container.c0"
C0_POLICY = "near-policy.pinfold.dev/container.c0"


@pytest.mark.parametrize(
    ("annotations", "of_pod", "of_c0"),
    [
        ({}, None, None),
        ({NEAR: "eth0"}, NearWish(("eth0",)), NearWish(("eth0",))),
        ({NEAR: " eth0 ,/dev/sda,eth0"}, *[NearWish(("eth0", "/dev/sda"))] * 2),
        ({NEAR: "a", POLICY: "required"}, *[NearWish(("a",), required=True)] * 2),
        ({NEAR: "a", POLICY: "preferred"}, *[NearWish(("a",))] * 2),
        ({C0: "b"}, None, NearWish(("b",))),
        ({NEAR: "a", C0: "b"}, NearWish(("a",)), NearWish(("b",))),
        ({NEAR: "a", C0_POLICY: "required"}, NearWish(("a",)), NearWish(("a",), required=True)),
        (
            {NEAR: "a", POLICY: "required", C0: "b", C0_POLICY: "preferred"},
            NearWish(("a",), required=True),
            NearWish(("b",)),
        ),
        ({NEAR: "a", POLICY: "required", C0: "b"}, *[NearWish((n,), required=True) for n in "ab"]),
    ],
)
def test_annotations(
    annotations: dict[str, str], of_pod: NearWish | None, of_c0: NearWish | None
) -> None:
    wishes = wishes_of(pod(annotations, 1))
    assert (wishes.pod if wishes else None) == of_pod
    assert (wishes.of("c0") if wishes else None) == of_c0


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({NEAR: ""}, "'' is no device name"),
        ({NEAR: "eth0,,eth1"}, "'' is no device name"),
        ({NEAR: "eth0 eth1"}, "'eth0 eth1' is no device name"),
        ({NEAR: 5}, "must be a string"),
        ({NEAR: ",".join(f"e{n}" for n in range(65))}, "65 devices are more than 64"),
        ({NEAR: "a", POLICY: "must"}, "must be preferred or required, not 'must'"),
        ({NEAR: "a", POLICY: True}, "must be preferred or required, not 'True'"),
        ({POLICY: "required"}, "there is no near.pinfold.dev/pod that it is for"),
        ({C0_POLICY: "required"}, "there is no near.pinfold.dev/container.c0"),
        ({"near.pinfold.dev/pods": "a"}, "must be near.pinfold.dev/pod or"),
        ({"near.pinfold.dev/container.": "a"}, "must be near.pinfold.dev/pod or"),
        ({"near.pinfold.dev/container.x": "a"}, "no container 'x'; it has c0"),
    ],
)
def test_annotations_that_are_no_wishes(annotations: dict[str, Any], problem: str) -> None:
    wrong = pod(annotations, 1)
    with pytest.raises(AnnotationError) as error:
        wishes_of(wrong)
    assert problem in str(error.value)
    scene = Scene()
    refusal = near_refusal(scene.localities, wrong)
    assert refusal is not None
    assert refusal.reason == "InvalidAnnotation"
    # Whoever goes on all the same has no wish, and a note.
    (attempt,) = near_attempts(scene.node.topology_manager, scene.localities, wrong)
    assert attempt.wishes is None
    assert problem in attempt.notes[0]


def test_a_node_that_knows_no_wishes() -> None:
    """A kubelet, and so a plan of what it would do."""
    manager = Scene(policy="restricted").node.topology_manager
    wish = pod({NEAR: "eth1", POLICY: "nonsense"}, 1)
    assert near_refusal(None, wish) is None
    (attempt,) = near_attempts(manager, None, wish)
    assert attempt.manager is manager
    assert attempt.providers({}) == ()
    assert attempt.notes == ()


def test_containers_that_are_not_known_yet() -> None:
    partly = pod({"near.pinfold.dev/container.later": "eth0"}, 1)
    assert wishes_of(partly, complete=False) is not None
    assert near_refusal(Scene().localities, partly, complete=False) is None


@given(st.dictionaries(st.sampled_from([NEAR, POLICY, C0, C0_POLICY]), st.text(max_size=12)))
def test_any_annotation_is_a_wish_or_refused(annotations: dict[str, str]) -> None:
    try:
        wishes = wishes_of(pod(annotations, 1))
    except AnnotationError:
        return
    for wish in wishes or ():
        assert wish.devices == device_names(",".join(wish.devices))


WISHED = st.lists(
    st.sampled_from(["eth0", "eth1", "eth2", "eth3"]), min_size=1, max_size=2, unique=True
)
TAKEN = st.frozensets(st.integers(1, 15), max_size=12)


@given(WISHED, TAKEN, st.integers(1, 6), st.sampled_from(["none", "best-effort"]), st.booleans())
def test_as_many_near_cpus_as_there_are(
    devices: list[str], taken: frozenset[int], request: int, policy: str, required: bool
) -> None:
    scene = Scene("4s4c1t", policy=policy)
    scene.free -= CPUSet(taken)
    near = scene.localities.resolve_all(devices).cpus & scene.free - CPUSet([0])
    plain, _ = scene.admit(pod({}, request))
    wish = {NEAR: ",".join(devices), POLICY: "required" if required else "preferred"}
    admission, cpus = scene.admit(pod(wish, request))
    if required:
        assert admission.admitted == (len(near) >= request)
    else:
        assert admission.admitted == plain.admitted
    if admission.admitted:
        assert len(cpus["c0"] & near) == min(request, len(near))


@given(WISHED, TAKEN, st.integers(1, 6), st.sampled_from(["restricted", "single-numa-node"]))
def test_under_strict_policies(
    devices: list[str], taken: frozenset[int], request: int, policy: str
) -> None:
    """Preferred costs no admission; required is near or refused."""
    scene = Scene("4s4c1t", policy=policy)
    scene.free -= CPUSet(taken)
    plain, _ = scene.admit(pod({}, request))
    wish = {NEAR: ",".join(devices)}
    admission, _ = scene.admit(pod(wish, request))
    assert admission.admitted == plain.admitted
    admission, cpus = scene.admit(pod(wish | {POLICY: "required"}, request))
    if admission.admitted:
        assert plain.admitted
        assert cpus["c0"] <= scene.localities.resolve_all(devices).cpus
