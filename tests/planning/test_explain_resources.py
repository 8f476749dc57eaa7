"""Why a pod got its memory and devices, or did not, and what less of them would do."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from pinfold import Planner, Quantity, parse_short_form
from pinfold.admission.admission import decide
from pinfold.admission.decision import Decision
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.pod.pod import Container, Pod
from pinfold.documents.explanation import Explanation
from pinfold.documents.status import Container as ContainerStatus
from pinfold.documents.status import Pod as PodStatus
from pinfold.planning.explaining.decision import explain_decision, explain_pod
from pinfold.render.explain_text import render_explain
from pinfold.render.terminal import Style
from pinfold.views.explain import ended_since, explain_view
from tests.scenes.published_schemas import explain_document
from tests.scenes.resource_world import FOUR, GPU, container, machine, one, pod, static, worlds


def explained(planner: Planner, pods: list[Pod], name: str) -> tuple[str, tuple[str, ...]]:
    """The constraint of the first container, and the remedies."""
    explanation = explain_pod(planner, pods, name)
    return explanation.containers[0].constraint, explanation.remedies


def test_devices_in_the_way_are_named_with_what_is_left() -> None:
    planner = Planner(machine(), static(), devices=FOUR)
    pods = [one("a", cpu="2", memory="1Gi", gpu="1"), one("b", cpu="2", memory="1Gi", gpu="3")]
    constraint, remedies = explained(planner, pods, "b")
    assert constraint.startswith(
        "policy single-numa-node needs one NUMA node for 2 CPUs, 1Gi memory and 3 example.com/gpu"
    )
    assert "in the way: device manager (example.com/gpu)" in constraint
    assert constraint.endswith("example.com/gpu: 1 free at NUMA node 0, 2 at 1")
    assert remedies[0] == (
        "ask for 2 example.com/gpu instead of 3 in container main (requests and limits)"
    )


def test_memory_in_the_way_is_named_with_what_is_left() -> None:
    planner = Planner(machine(), static())
    pods = [one("a", cpu="2", memory="1Gi"), one("b", cpu="2", memory="12Gi", pages="5Gi")]
    constraint, remedies = explained(planner, pods, "b")
    assert "hugepages-1Gi: 4Gi free at NUMA node 0, 4Gi at 1" in constraint
    assert (
        "memory comes from several nodes only where none of them serves a container alone, as "
        in (constraint)
    )
    assert remedies[0] == (
        "ask for 4Gi hugepages-1Gi instead of 5Gi in container main (requests and limits)"
    )
    assert remedies[-1] == "memoryManagerPolicy: None, without reservedMemory"


def test_several_containers_may_have_to_ask_for_less() -> None:
    planner = Planner(machine(), static())
    first = container("first", cpu="2", memory="14Gi")
    pods = [one("a", cpu="2", memory="1Gi")]
    pods.append(pod("b", container("main", cpu="2", memory="14Gi"), init=(first,)))
    _, remedies = explained(planner, pods, "b")
    assert remedies[0] == (
        "ask for at most 12Gi memory in each of the containers first, main (requests and limits)"
    )


def test_every_provider_has_its_hints_in_the_document() -> None:
    planner = Planner(machine(), static(), devices=FOUR)
    explanation = explain_pod(planner, [one("a", cpu="2", memory="1Gi", pages="1Gi", gpu="1")], "a")
    [told] = explain_document(planner, explanation)["containers"]
    hints = {
        (answer["provider"], resource)
        for answer in told["hints"]
        for resource in answer["resources"]
    }
    assert hints == {
        ("device manager", GPU),
        ("cpu manager", "cpu"),
        ("memory manager", "memory"),
        ("memory manager", "hugepages-1Gi"),
    }
    assert told["devices"] == {GPU: ["gpu-0"]}
    assert [block["type"] for block in told["memory"]] == ["hugepages-1Gi", "memory"]
    assert "from NUMA nodes {0} (preferred under single-numa-node)" in told["constraint"]


def test_devices_of_a_shared_container_are_told_too() -> None:
    planner = Planner(machine(), static(), devices=FOUR)
    constraint, _ = explained(planner, [one("a", gpu="1")], "a")
    assert constraint.startswith("shared pool: the pod is BestEffort")
    assert "; 1 example.com/gpu; from NUMA nodes {0}" in constraint


def test_wishes_that_could_not_be_met_are_told() -> None:
    planner = Planner(
        parse_short_form("2s4c2t"),
        static(memory_manager_policy="None", reserved_memory=()),
        rules=SOUND,
    )
    wishing = replace(one("a", cpu="2", memory="1Gi"), annotations={"near.pinfold.dev/pod": "eth0"})
    explanation = explain_pod(planner, [wishing], "a")
    [note] = explain_document(planner, explanation)["notes"]
    assert note.startswith("not kept near: 'eth0'")


def test_what_an_agent_has_recorded_is_told_whole() -> None:
    planner = Planner(machine(), static(), devices=FOUR)
    pods = [one("a", cpu="2", memory="1Gi", gpu="1"), one("b", cpu="1", memory="1Gi", gpu="4")]
    given, refused = (
        explain_document(planner, explain_pod(planner, pods, name)) for name in ("a", "b")
    )
    noted = {**given, "notes": ["not kept near: eth0"]}
    text = drawn(noted)
    assert "memory 1 GiB on NUMA node 0" in text
    assert "example.com/gpu: gpu-0" in text
    assert "• not kept near: eth0" in text
    assert "example.com/gpu  none: it cannot be had" in drawn(refused)
    new = {"notes", "memory", "devices", "memoryManagerPolicy"}
    old = {name: value for name, value in given.items() if name not in new}
    old["containers"] = [
        {name: value for name, value in row.items() if name not in new}
        for row in given["containers"]
    ]
    assert "GiB" not in drawn(old)


def drawn(document: dict[str, Any]) -> str:
    """As ``pinfold explain pod/NAME`` shows what an agent has recorded."""
    return render_explain(
        explain_view(msgspec.convert(document, Explanation)), Style(100), hints=True
    )


def ended(phase: str, code: int | None, reason: str | None = None, **decision: bool) -> str:
    """The verdict about a pod of one container that has ended."""
    planner = Planner(machine(), static())
    told = explain_document(planner, explain_pod(planner, [one("a", cpu="2", memory="1Gi")], "a"))
    container = ContainerStatus(
        name="main",
        kind="container",
        cpus="",
        exclusive=False,
        numa_nodes=(),
        memory=(),
        devices={},
        state="EXITED",
        pid=None,
        restarts=0,
        exit_code=code,
    )
    pod = PodStatus(
        namespace="default",
        name="a",
        uid="u",
        qos="Guaranteed",
        phase=phase,
        reason=reason,
        message=reason and "the record does not fit",
        source="api",
        admitted_at=0.0,
        containers=[container],
    )
    if since := ended_since(msgspec.convert({**told, **decision}, Explanation), pod):
        told |= {"ended": msgspec.to_builtins(since)}
    return drawn(told).partition("\n  kubelet")[0]


def test_how_a_pod_has_ended() -> None:
    admitted = "default/a\n  admitted  Guaranteed"
    assert ended("Running", None) == f"✓ {admitted}"
    assert ended("Succeeded", 0) == f"✓ {admitted}\n  ended: Succeeded"
    assert ended("Failed", 12) == f"✗ {admitted}\n  ended: Failed: container main exited with 12"
    assert ended("Failed", None, "NodeMismatch") == (
        f"✗ {admitted}\n  ended: NodeMismatch: the record does not fit"
    )
    assert ended("Failed", None, "OutOfcpu", admitted=False) == f"✓ {admitted}"


def asking_plugins(planner: Planner, wanted: Pod) -> Decision:
    """The refusal of a pod by a node whose plugins are to be asked first, and which counts them."""
    node = replace(planner.node, devices_managed=True)
    state = replace(
        planner.empty,
        devices=DeviceState({GPU: replace(FOUR[GPU], preferred_allocation=True)}),
    )
    decision = decide(node, state, wanted)
    assert not decision.admitted
    remedies = explain_decision(planner, state, decision).remedies
    assert remedies
    return replace(decision, notes=remedies)


def test_remedies_of_an_agent_ask_no_plugin() -> None:
    planner = Planner(machine(), static(), rules=SOUND)
    decision = asking_plugins(planner, one("a", cpu="2", memory="1Gi", gpu="3"))
    assert decision.reason == "TopologyAffinityError"
    assert decision.notes[0].startswith("ask for 2 example.com/gpu instead of 3")


def test_remedies_of_an_agent_keep_to_its_rules() -> None:
    planner = Planner(machine(), static(), rules=SOUND)
    decision = asking_plugins(planner, one("a", **{"foo.com/x": "3"}))
    assert decision.reason == "OutOffoo.com/x"
    assert decision.notes == ("ask for no foo.com/x instead of 3 in container main",)


def without_plugin(gone: bool, **amounts: str) -> tuple[str, ...]:
    """The remedies for a pod while the plugin of the GPUs is away, or was given up."""
    planner = Planner(machine(), static(), rules=SOUND)
    node = replace(planner.node, devices_managed=True)
    listed = DeviceState(FOUR)
    lost = {GPU: replace(FOUR[GPU], connected=False)}
    devices = listed.with_inventory({} if gone else lost)
    state = replace(planner.empty, devices=devices)
    decision = decide(node, state, one("a", cpu="2", memory="1Gi", **amounts))
    assert not decision.admitted
    return explain_decision(planner, state, decision).remedies


@pytest.mark.parametrize("gone", [False, True])
def test_a_plugin_that_is_gone_is_to_be_started_again(gone: bool) -> None:
    assert without_plugin(gone, gpu="1") == (f"start the device plugin of {GPU} again",)
    # It would not help here.
    assert without_plugin(gone, gpu="9") == (f"ask for no {GPU} instead of 9 in container main",)


ASKED = re.compile(
    r"ask for (?:at most )?(no|[0-9]+(?:Mi|Gi|Ki)?) (\S+) (?:instead of \S+ in container (\S+)|in "
    r"each of the containers ([^(]+))"
)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_remedies_work_when_they_are_followed(world: tuple[Planner, list[Pod]]) -> None:
    planner, pods = world
    for decision, state, _ in planner.decisions(pods):
        explanation = explain_decision(planner, state, decision)
        assert bool(explanation.remedies) <= (not decision.admitted)
        for remedy in explanation.remedies:
            asked = ASKED.match(remedy)
            if asked is None:
                continue
            amount, resource, name, names = asked.groups()
            resource = {"CPU": "cpu", "CPUs": "cpu"}.get(resource, resource)
            changed = less(decision.pod, (name or names).strip().split(", "), resource, amount)
            assert decide(planner.node, state, changed).admitted, remedy


def less(wanted: Pod, names: list[str], resource: str, amount: str) -> Pod:
    """The pod with another amount in some containers that ask for more."""

    def changed(one: Container) -> Container:
        if one.name not in names:
            return one
        limits = {name: quantity for name, quantity in one.limits.items() if name != resource}
        if amount != "no":
            parsed = Quantity.parse(amount)
            limits[resource] = parsed if len(names) == 1 else min(parsed, one.limits[resource])
        return replace(one, requests=limits, limits=limits)

    return replace(
        wanted,
        containers=tuple(map(changed, wanted.containers)),
        init_containers=tuple(map(changed, wanted.init_containers)),
    )
