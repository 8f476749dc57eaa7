"""What a plan says of MemoryQoS: for containers, pods and the cgroups of QoS classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.kubelet.versions import V1_35, V1_37
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Container, Pod, PodResources
from pinfold.core.values.quantity import Quantity
from pinfold.documents.plan import Plan
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Planner
from pinfold.render.plan_view import PlanView
from pinfold.views.plan import plan_view, planned_on

MIB = 1 << 20
GIB = 1 << 30
ON = NodeConfig(feature_gates={"MemoryQoS": True}, memory_reservation_policy="TieredReservation")


def amounts(**sizes: str) -> dict[str, Quantity]:
    return {name: Quantity.parse(size) for name, size in sizes.items()}


WHOLE = amounts(cpu="1", memory="1Gi")
GUARANTEED = Pod("g", "g", containers=(Container("c", WHOLE, WHOLE),))
BURSTABLE = Pod(
    "b", "b", containers=(Container("c", amounts(memory="64Mi"), amounts(memory="128Mi")),)
)
BEST_EFFORT = Pod("e", "e", containers=(Container("c"),))
WITH_A_BUDGET = Pod(
    "w",
    "w",
    containers=(Container("own", WHOLE, WHOLE), Container("shared")),
    resources=PodResources(amounts(cpu="2", memory="3Gi"), amounts(cpu="2", memory="3Gi")),
)


def plan(
    config: NodeConfig,
    pods: Sequence[Pod],
    kernel: Kernel = Kernel(),  # noqa: B008 - frozen
) -> tuple[Plan, PlanView]:
    made = Planner(parse_short_form("1s4c2t"), config, kernel=kernel).plan(pods)
    document = plan_document(made)
    return document, plan_view(document, planned_on(made))


def told(document: Plan) -> dict[str, Any]:
    """Where something is written, and what."""
    found: dict[str, Any] = {"classes": document.memory_qos}
    for pod in document.pods:
        found[pod.name] = pod.memory_qos
        found |= {f"{pod.name}/{one.name}": one.memory_qos for one in pod.containers}
    return {name: to_builtins(one) for name, one in found.items() if one is not UNSET}


def files(min: int | None = None, low: int | None = None, high: int | None = None) -> Any:  # noqa: A002 - the file's name
    return {"min": min, "low": low, "high": high}


def test_without_the_gate_nothing_is_said() -> None:
    document, view = plan(NodeConfig(), [GUARANTEED, BURSTABLE])
    assert (told(document), view.in_force) == ({}, ())


def test_tiers() -> None:
    document, view = plan(ON, [GUARANTEED, BURSTABLE, BEST_EFFORT])
    assert told(document) == {
        "classes": {"kubepods": files(GIB + 64 * MIB), "burstable": files(low=64 * MIB)},
        "g": files(GIB),
        "g/c": files(GIB),
        "b": files(low=64 * MIB),
        "b/c": files(low=64 * MIB, high=round((64 + 64 * 0.9) * MIB) // 4096 * 4096),
        "e/c": files(0, 0, document.pods[2].containers[0].memory_qos.high),  # type: ignore[union-attr]  # set
    }
    assert view.in_force == (
        "cgroup kubepods: memory.min 1.1 GiB",
        "cgroup burstable: memory.low 64 MiB",
    )
    guaranteed, burstable, _ = view.pods
    assert guaranteed.whole == ("pod memory.min 1 GiB",)
    assert burstable.containers[0].extras == ("memory.low 64 MiB, memory.high 122 MiB",)


def test_before_the_tiers_every_request_is_kept() -> None:
    document, _ = plan(replace(ON, kubelet_version=V1_35), [GUARANTEED, BURSTABLE])
    found = told(document)
    assert found["classes"] == {
        "kubepods": files(GIB + 64 * MIB),
        "burstable": files(64 * MIB),
    }
    assert (found["b"], found["b/c"]["min"]) == (files(64 * MIB), 64 * MIB)


def test_a_gate_that_is_on_by_default_says_nothing() -> None:
    for kernel in (Kernel(), Kernel(cgroups=1)):
        document, _ = plan(NodeConfig(kubelet_version=V1_37), [GUARANTEED, BURSTABLE], kernel)
        assert (told(document), document.machine.notes) == ({}, ())


def test_with_policy_none_what_was_there_is_taken_away() -> None:
    document, view = plan(replace(ON, memory_reservation_policy="None"), [GUARANTEED])
    assert told(document) == {
        "classes": {"kubepods": files(0), "burstable": files(low=0)},
        "g/c": files(0, 0),
    }
    assert (view.in_force, view.pods[0].whole) == ((), ())


@pytest.mark.parametrize("managers", [False, True])
def test_a_pod_with_a_budget_is_protected_by_it(managers: bool) -> None:
    gates = {"MemoryQoS": True, "PodLevelResourceManagers": managers}
    found = told(plan(replace(ON, feature_gates=gates), [WITH_A_BUDGET])[0])
    assert (found["w"], found["w/own"]) == (files(3 * GIB), files(GIB))
    assert found["w/shared"]["min"] == 0


def test_who_was_rejected_has_nothing() -> None:
    huge = amounts(cpu="100", memory="1Gi")
    document, _ = plan(ON, [Pod("h", "h", containers=(Container("c", huge, huge),))])
    assert not document.pods[0].admitted
    assert told(document) == {"classes": {"kubepods": files(0), "burstable": files(low=0)}}


def test_cgroup_v1_has_no_such_files() -> None:
    document, _ = plan(ON, [GUARANTEED], Kernel(cgroups=1))
    assert told(document) == {}
    assert document.machine.notes == (
        "the feature gate MemoryQoS has no effect: the machine has cgroup v1",
    )
    assert told(plan(ON, [GUARANTEED], Kernel(cgroups=2))[0])


@pytest.mark.parametrize(
    ("runtime", "written", "classes"),
    [("process", True, False), ("nri", True, True), ("cri", True, False)],
)
def test_who_writes_them_on_a_node_with_an_agent(
    runtime: str, written: bool, classes: bool
) -> None:
    document, _ = plan(replace(ON, own=OwnPolicies(), runtime=runtime), [GUARANTEED])
    assert ("g/c" in told(document), "classes" in told(document)) == (written, classes)


@pytest.mark.parametrize(
    ("runtime", "throttled"), [("process", False), ("cri", False), ("nri", True)]
)
def test_an_agent_slows_nobody_down_on_the_way_to_no_limit(runtime: str, throttled: bool) -> None:
    unlimited = replace(BURSTABLE, annotations={"pinfold.dev/memory-limit": "none"})
    document, _ = plan(replace(ON, own=OwnPolicies(), runtime=runtime), [unlimited])
    assert (told(document)["b/c"]["high"] is not None) == throttled
    (container,) = document.pods[0].containers
    wishes = {one.feature: one.value or "" for one in container.in_force or ()}
    assert "memory.high" not in wishes["memoryQoS"]
