"""What a plan says would be in force beside places, with its source or the reason why not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.in_force.table import FEATURES, Feature, wishes_of_container, wishes_of_node
from pinfold.admission.in_force.wished import PlacedContainer, PlannedNode, Wish
from pinfold.admission.model import NodeError
from pinfold.config.agent import load_agent_config
from pinfold.config.kubelet import ConfigError
from pinfold.core.cache.options import CacheClass, CacheOptions
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import (
    DynamicOptions,
    InterruptOptions,
    IOWeights,
    LendingOptions,
    LoadDrivenOptions,
    OwnPolicies,
    ParkingOptions,
    SuppressionOptions,
)
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.plan import InForce
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, Planner
from pinfold.views.plan import plan_view, planned_on

MACHINE = parse_short_form("1s4c2t")
KUBELETS = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
OURS = replace(KUBELETS, own=OwnPolicies())
LENT = LendingOptions(use=True)
BY_LOAD = LoadDrivenOptions(use=True)
WISHFUL = replace(
    OURS,
    cpu_manager_policy="dynamic",
    partition="isolated",
    owner_offline="freeze",
    confine_system=True,
    scale_down_grace_period=2.0,
    own=OwnPolicies(dynamic=DynamicOptions(rebalance_period="5m")),
)


def pod(cpus: str = "2", spec: dict[str, Any] | None = None, **said: Any) -> Pod:
    amounts = {"cpu": cpus, "memory": "1Gi"}
    container = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    annotations = {f"{name.replace('_', '-')}.pinfold.dev/pod": text for name, text in said.items()}
    return pod_from_api(
        {
            "metadata": {"name": "db", "annotations": annotations},
            "spec": {"containers": [container], **(spec or {})},
        }
    )


def planned(config: NodeConfig, *pods: Pod) -> Plan:
    return Planner(MACHINE, config).plan(pods)


def wishes(config: NodeConfig, one: Pod) -> dict[str, InForce]:
    (placed,) = plan_document(planned(config, one)).pods
    return {wish.feature: wish for wish in placed.containers[0].in_force or ()}


def test_nothing_is_said_where_nothing_is_wished() -> None:
    for config in (KUBELETS, OURS):
        document = plan_document(planned(config, pod(), pod("500m")))
        assert not document.in_force
        assert not any(one.in_force for placed in document.pods for one in placed.containers)


def test_a_kubelet_heeds_no_wish() -> None:
    assert not wishes(KUBELETS, pod(rebalance="true", scale_down_grace_period="3"))


def test_what_is_wished_of_a_node_and_of_its_owners() -> None:
    document = plan_document(planned(WISHFUL, pod()))
    assert [(one.feature, one.value, one.source) for one in document.in_force or ()] == [
        ("partition", "isolated", "setting partition"),
        ("confineSystem", "everything else on CPUs 0", "setting confineSystem"),
        ("rebalance", "every 5m, at most 12 moves an hour", "setting dynamic.rebalancePeriod"),
    ]
    found = wishes(WISHFUL, pod(load_balance="false"))
    assert {name: wish.value for name, wish in found.items()} == {
        "partition": "isolated",
        "ownerOffline": "freeze",
        "scaleDownGracePeriod": "2 s",
    }
    assert (found["partition"].provided or "").startswith("cgroup v2 and Linux 6.7, or")
    assert not wishes(WISHFUL, pod("500m"))


def test_a_pods_word_counts_more_than_the_nodes() -> None:
    found = wishes(WISHFUL, pod(rebalance="false", scale_down_grace_period="5"))
    assert found["scaleDownGracePeriod"].value == "5 s"
    key = "annotation scale-down-grace-period.pinfold.dev/pod"
    assert found["scaleDownGracePeriod"].source == key
    assert found["rebalance"].value == "stays where it is"
    fielded = pod(spec={"scaleDownGracePeriodSeconds": 7}, scale_down_grace_period="5")
    wish = wishes(WISHFUL, fielded)["scaleDownGracePeriod"]
    assert (wish.value, wish.source) == ("7 s", "field spec.scaleDownGracePeriodSeconds")


@pytest.mark.parametrize(
    ("config", "one", "feature", "reason"),
    [
        (OURS, pod(rebalance="true"), "rebalance", "cpuManagerPolicy is static, not dynamic"),
        (WISHFUL, pod("500m", rebalance="true"), "rebalance", "it has no CPUs of its own"),
        (
            WISHFUL,
            pod("500m", scale_down_grace_period="1"),
            "scaleDownGracePeriod",
            "it has no CPUs of its own",
        ),
        (
            WISHFUL,
            pod("2500m", mixed_cpus="true", load_balance="false"),
            "partition",
            "it uses the shared pool, too",
        ),
        (
            replace(WISHFUL, runtime="cri"),
            pod(load_balance="false"),
            "partition",
            "is carried out with runtime process only",
        ),
        (WISHFUL, pod("500m", load_balance="false"), "partition", "it has no CPUs of its own"),
        (
            replace(WISHFUL, partition="root"),
            pod(load_balance="false"),
            "partition",
            "setting partition is root, not isolated",
        ),
    ],
)
def test_why_something_is_not_in_force(
    config: NodeConfig, one: Pod, feature: str, reason: str
) -> None:
    wish = wishes(config, one)[feature]
    assert (wish.value, wish.reason) == (None, reason)
    assert not wish.provided


def test_why_nothing_is_in_force_on_a_node() -> None:
    config = replace(WISHFUL, cpu_manager_policy="none", reserved_system_cpus=CPUSet())
    found = {name: wish.reason for name, wish in wishes_of_node(PlannedNode(config, MACHINE))}
    assert found == {
        "partition": "cpuManagerPolicy none owns none",
        "confineSystem": "reservedSystemCPUs is not set",
    }


def test_an_annotation_that_cannot_be_read_wishes_nothing() -> None:
    assert not wishes(OURS, pod(rebalance="perhaps", scale_down_grace_period="soon"))


def test_what_is_said_in_text() -> None:
    one = pod(rebalance="false", load_balance="false")
    plan = planned(replace(WISHFUL, runtime="nri"), one)
    view = plan_view(plan_document(plan), planned_on(plan))
    assert view.in_force[0] == (
        "partition: not in force, is carried out with runtime process only (setting partition)"
    )
    assert view.pods[0].containers[0].extras == (
        "by setting: ownerOffline freeze, scaleDownGracePeriod 2 s",
        "by annotation: rebalance stays where it is",
        (
            "partition: not in force, is carried out with runtime process only (annotation "
            "load-balance.pinfold.dev/pod)"
        ),
    )


def test_a_rejected_pod_has_nothing() -> None:
    (placed,) = plan_document(planned(WISHFUL, pod("64"))).pods
    assert not any(one.in_force for one in placed.containers)


@given(
    st.sampled_from(["none", "static", "dynamic"]),
    st.sampled_from(["process", "cri", "nri"]),
    st.sampled_from([WISHFUL, OURS]),
    st.tuples(st.sets(st.integers(0, 7)).map(CPUSet), st.booleans()),
    st.dictionaries(
        st.sampled_from(["rebalance", "scale_down_grace_period", "mixed_cpus"]),
        st.sampled_from(["true", "false", "3", ""]),
    ),
)
def test_each_row_says_a_value_or_a_reason_and_who_wished_it(
    policy: str, runtime: str, base: NodeConfig, place: tuple[CPUSet, bool], said: dict[str, str]
) -> None:
    node = PlannedNode(replace(base, cpu_manager_policy=policy, runtime=runtime), MACHINE)
    container = PlacedContainer(node, pod("2", None, **said), "main", *place)
    names = [feature.name for feature in FEATURES]
    for told in (list(wishes_of_node(node)), list(wishes_of_container(container))):
        assert [name for name, _ in told] == sorted((name for name, _ in told), key=names.index)
        for name, wish in told:
            assert (wish.value is None) == bool(wish.reason), name
            assert wish.source.partition(" ")[0] in {"annotation", "setting", "field"}
            (row,) = (feature for feature in FEATURES if feature.name == name)
            assert wish.value is None or runtime in row.runtimes


def test_a_row_need_not_look_at_the_runtime() -> None:
    row = Feature(
        name="x", runtimes=("cri",), of_node=lambda _: Wish.granted("on", "setting x", "luck")
    )
    ((_, wish),) = wishes_of_node(PlannedNode(OURS, MACHINE), [row])
    assert wish == Wish.refused("setting x", "is carried out with runtime cri only")


@pytest.mark.parametrize(
    ("use", "said", "value"),
    [(False, None, None), (True, None, "kept off"), (False, "keep-off", "kept off")],
)
def test_interrupts_are_kept_off_where_somebody_asks(
    use: bool,
    said: str | None,
    value: str | None,
) -> None:
    config = replace(OURS, own=OwnPolicies(irqs=InterruptOptions(use=use)))
    asked = pod() if said is None else pod(irqs=said)
    node = PlannedNode(config, MACHINE)
    wishes = dict(wishes_of_container(PlacedContainer(node, asked, "main", CPUSet([1]))))
    assert (wishes["irqs"].value if value else wishes.get("irqs")) == value
    shared = dict(wishes_of_container(PlacedContainer(node, asked, "main")))
    if said is not None:
        assert shared["irqs"].reason == "it has no CPUs of its own"


def test_a_pod_may_allow_interrupts() -> None:
    config = replace(OURS, own=OwnPolicies(irqs=InterruptOptions(use=True)))
    placed = PlacedContainer(PlannedNode(config, MACHINE), pod(irqs="allow"), "main", CPUSet([1]))
    assert dict(wishes_of_container(placed))["irqs"].value == "interrupts may come"


@pytest.mark.parametrize(
    ("one", "value", "reason"),
    [
        (pod(), "fast (l3 4, memoryBandwidth 50%)", None),
        (pod(cache_class="thin"), "thin (l2 25%)", None),
        (pod(cache_class="none"), "what all others have", None),
        (pod(cache_class="gold"), None, "the setting cache has no class gold"),
        (pod("500m", cache_class="thin"), None, "it has no CPUs of its own"),
        (pod("500m"), None, None),
    ],
)
def test_the_part_of_the_caches(one: Pod, value: str | None, reason: str | None) -> None:
    classes = {"fast": CacheClass(l3="4", memory_bandwidth="50%"), "thin": CacheClass(l2="25%")}
    options = CacheOptions(use=True, classes=classes, exclusive="fast")
    found = wishes(replace(OURS, own=OwnPolicies(cache=options)), one).get("cache")
    assert (found and found.value, found and found.reason) == (value, reason)
    unused = wishes(OURS, one).get("cache")
    said = one.annotations.get("cache-class.pinfold.dev/pod", "none") != "none"
    assert (unused and unused.reason) == ("cache.use is not set" if said else None)


def test_limits_by_class_and_manifest() -> None:
    """What is wished of a container beside CPUs, and why it is not where it is not."""
    config = replace(
        OURS,
        feature_gates={"MemoryQoS": True},
        memory_reservation_policy="TieredReservation",
        pod_pids_limit=50,
        own=OwnPolicies(
            io_weights=IOWeights(guaranteed=500), suppression=SuppressionOptions(use=True)
        ),
    )
    document = plan_document(planned(config, pod()))
    assert [(one.feature, one.value) for one in document.in_force or ()] == [
        ("suppression", "best-effort containers have 65% of the node less what others use"),
        ("podPidsLimit", "50 processes a pod"),
    ]
    found = wishes(config, pod("500m", cpu_burst="50%"))
    assert {name: (one.value, one.source) for name, one in found.items()} == {
        "memoryQoS": ("memory.min 1073741824 bytes", "setting memoryReservationPolicy"),
        "cpuBurst": ("25000 us of 50000 us", "annotation cpu-burst.pinfold.dev/pod"),
        "ioWeight": ("500 (of its pod)", "setting ioWeights.guaranteed"),
    }
    assert wishes(config, pod("2", cpu_burst="50%"))["cpuBurst"].reason == "it has no CPU quota"
    assert wishes(OURS, pod("500m", cpu_burst="0%")) == {}
    with_containers = replace(config, runtime="cri")
    by_name = wishes(with_containers, pod())
    assert by_name.pop("memoryQoS").value == "memory.min 1073741824 bytes"
    assert all(one.value is None for one in by_name.values())


@pytest.mark.parametrize(
    ("kernel", "value", "reason", "provided"),
    [
        (Kernel(), "isolated", None, "cgroup v2 and Linux 6.7"),
        (Kernel((6, 18), 2), "isolated", None, None),
        (Kernel((6, 18), 1), None, "the kernel's cpusets are on cgroup v1", None),
        (Kernel((6, 1), 2), None, "the kernel is older than 6.7", None),
    ],
)
def test_a_kernel_that_is_known_decides(
    kernel: Kernel, value: str | None, reason: str | None, provided: str | None
) -> None:
    row = Feature(
        name="x",
        of_node=lambda _: Wish.granted("isolated", "setting x", "cgroup v2 and Linux 6.7"),
    )
    ((_, wish),) = wishes_of_node(PlannedNode(OURS, MACHINE, kernel), [row])
    assert (wish.value, wish.reason, wish.provided) == (value, reason, provided)
    planner = Planner(MACHINE, WISHFUL, kernel=kernel)
    told = {one.feature: one for one in plan_document(planner.plan([])).in_force or ()}
    assert told["partition"].value == value


@pytest.mark.parametrize(
    ("cgroups", "root_balances", "value", "reason", "provided"),
    [
        (1, True, None, "on cgroup v1 it needs the setting rootLoadBalance: false", None),
        (1, False, "isolated", None, None),
        (2, True, "isolated", None, None),
        (None, False, "isolated", None, "cgroup v2 and Linux 6.7, or cgroup v1"),
    ],
)
def test_a_partition_on_cgroup_v1_hangs_on_the_roots_flag(
    cgroups: int | None,
    *,
    root_balances: bool,
    value: str | None,
    reason: str | None,
    provided: str | None,
) -> None:
    config = replace(WISHFUL, root_load_balance=root_balances)
    node = PlannedNode(config, MACHINE, Kernel((6, 18) if cgroups else None, cgroups))
    placed = PlacedContainer(node, pod(load_balance="false"), "main", CPUSet([1]))
    for told in (dict(wishes_of_node(node)), dict(wishes_of_container(placed))):
        wish = told["partition"]
        assert (wish.value, wish.reason, wish.provided) == (value, reason, provided)


@pytest.mark.parametrize("partition", ["isolated", "root"])
def test_nothing_of_a_partition_is_lent(partition: str) -> None:
    config = replace(WISHFUL, partition=partition, own=OwnPolicies(lending=LENT))
    said: dict[str, Any] = {"load_balance": "false"} if partition == "isolated" else {}
    found = wishes(config, pod(lend_cpus="true", **said))
    assert found["partition"].value == partition
    assert found["lending"].reason == "its CPUs are to be a partition, in which nobody else can run"
    if partition == "isolated":
        assert wishes(config, pod(lend_cpus="true"))["lending"].value


@pytest.mark.parametrize(
    ("own", "runtime", "features"),
    [
        (OwnPolicies(lending=LENT), "nri", {"lending"}),
        (OwnPolicies(suppression=SuppressionOptions(use=True)), "cri", {"suppression"}),
        (
            OwnPolicies(load_driven=BY_LOAD, parking=ParkingOptions(use=True)),
            "nri",
            {"loadDriven", "parking"},
        ),
    ],
)
def test_what_an_agent_does_not_start_with(
    tmp_path: Path, own: OwnPolicies, runtime: str, features: set[str]
) -> None:
    config = replace(WISHFUL, partition="member", runtime=runtime, own=own)
    machine = parse_short_form("2s4c2t")
    told = dict(wishes_of_node(PlannedNode(config, machine)))
    reason = f"an agent with runtime {runtime} does not start with it"
    assert {name for name, wish in told.items() if wish.reason == reason} == features
    file = tmp_path / "config.yaml"
    for name in features:
        section = {"runtime": runtime, name: {"use": True}}
        fields = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "cpuManagerPolicy": "dynamic",
            "reservedSystemCPUs": "0",
            "pinfold": section,
        }
        file.write_text(json.dumps(fields))
        start = f"{file}: pinfold.{name}.use: not with runtime {runtime}: "
        with pytest.raises(ConfigError, match=f"^{re.escape(start)}.*; set {name}.use: false, or"):
            load_agent_config(file)


def test_what_has_to_be_so_on_the_machine_is_in_the_text() -> None:
    config = replace(
        OURS, feature_gates={"MemoryQoS": True}, memory_reservation_policy="TieredReservation"
    )
    plan = planned(config, pod("500m"))
    (row,) = plan_view(plan_document(plan), planned_on(plan)).pods[0].containers
    assert row.extras == ("by setting: memoryQoS memory.min 1073741824 bytes on cgroup v2",)


def test_one_socket_has_nothing_to_park() -> None:
    config = replace(WISHFUL, own=OwnPolicies(parking=ParkingOptions(use=True)))
    wish = dict(wishes_of_node(PlannedNode(config, MACHINE)))["parking"]
    assert wish.reason == "the machine has one socket: there is nothing to park"
    two = PlannedNode(config, parse_short_form("2s4c2t"))
    assert dict(wishes_of_node(two))["parking"].value


def test_what_borrows() -> None:
    own = OwnPolicies(lending=LENT, suppression=SuppressionOptions(use=True))
    lending = replace(OURS, own=own)

    def best_effort(**said: str) -> Pod:
        bare = {"containers": [{"name": "main"}]}
        return pod(spec=bare, **said)

    told = wishes(lending, best_effort())["borrow"]
    assert told.value == "runs on what others lend, is suppressed"
    assert told.source == "setting lending.use and suppression.use"
    key = "annotation borrow.pinfold.dev/pod"
    told = wishes(lending, best_effort(borrow="false"))["borrow"]
    assert (told.value, told.source) == ("keeps to the shared pool, and is not suppressed", key)
    told = wishes(lending, pod(borrow="false"))["borrow"]
    assert told.reason == "its pod is Guaranteed, and only BestEffort ones borrow"
    assert "borrow" not in wishes(lending, pod())
    assert "borrow" not in wishes(OURS, best_effort())
    told = wishes(OURS, best_effort(borrow="true"))["borrow"]
    assert told.reason == "neither lending.use nor suppression.use is set"


def test_what_a_container_has_while_its_load_gives_it_cpus() -> None:
    options = CacheOptions(use=True, classes={"fast": CacheClass(l3="4")}, exclusive="fast")
    own = OwnPolicies(
        load_driven=BY_LOAD, lending=LENT, irqs=InterruptOptions(use=True), cache=options
    )
    config = replace(WISHFUL, own=own)
    said: dict[str, Any] = {"load_driven": "true", "rebalance": "false", "lend_cpus": "true"}
    found = wishes(config, pod(load_balance="false", **said))
    assert found.pop("lending").reason
    found["lending"] = wishes(config, pod(**said))["lending"]
    assert {name: wish.value for name, wish in found.items()} == {
        "partition": "isolated, while it has CPUs of its own",
        "ownerOffline": "freeze, while it has CPUs of its own",
        "scaleDownGracePeriod": "2 s, while it has CPUs of its own",
        "irqs": "kept off, while it has CPUs of its own",
        "cache": "fast (l3 4), while it has CPUs of its own",
        "rebalance": "stays where it is, while it has CPUs of its own",
        "loadDriven": "starts shared, 2 CPUs are charged",
        "lending": "up to 2 of its CPUs while they are idle, while it has CPUs of its own",
    }


def test_housekeeping_cpus_are_those_of_the_machine() -> None:
    def planned(cpus: str) -> Planner:
        own = OwnPolicies(irqs=InterruptOptions(use=True, housekeeping=cpus))
        return Planner(parse_short_form("1s4c1t"), replace(KUBELETS, own=own))

    planned("0-3")
    with pytest.raises(NodeError, match=r"housekeeping is 2-9, .* no CPUs 4-9 \(name some .* 0-3"):
        planned("2-9")
