"""Pods: QoS class, exclusivity, requests, defaults, and the API's form."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.pod.api import PodError, pod_from_api, quantity_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    Container,
    Pod,
    PodResources,
    QOSClass,
    container_limits,
    container_requests,
    exclusive_requests,
    guaranteed_cpus,
    pod_guaranteed_cpus,
    pod_limits,
    pod_requests,
)
from pinfold.core.values.quantity import Quantity


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def same(name: str = "c", restart_policy: str | None = None, **texts: str) -> Container:
    """A container whose requests are its limits."""
    return Container(name, amounts(**texts), amounts(**texts), restart_policy)


def pod(*containers: Container, **fields: Any) -> Pod:
    return Pod(uid="u", name="p", containers=containers, **fields)


def printed(resources: dict[str, Quantity]) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in resources.items()}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ((), QOSClass.BEST_EFFORT),
        ((Container("c"),), QOSClass.BEST_EFFORT),
        ((same(cpu="0", memory="0"),), QOSClass.BEST_EFFORT),
        ((same(hugepages_2Mi="2Mi"),), QOSClass.BEST_EFFORT),
        ((same(cpu="2", memory="1Gi"),), QOSClass.GUARANTEED),
        ((Container("c", amounts(cpu="2000m"), amounts(cpu="2", memory="1Gi")),), None),
        ((same(cpu="2"),), QOSClass.BURSTABLE),
        ((same(memory="1Gi"),), QOSClass.BURSTABLE),
        ((same(cpu="2", memory="1Gi"), Container("d")), QOSClass.BURSTABLE),
        ((Container("c", amounts(cpu="1")),), QOSClass.BURSTABLE),
    ],
)
def test_qos_class(containers: tuple[Container, ...], qos: QOSClass | None) -> None:
    assert pod(*containers).qos is (qos or QOSClass.BURSTABLE)


def test_requests_and_limits_are_compared_in_sum() -> None:
    """As the kubelet does: a pod may be Guaranteed though no container's requests are equal."""
    uneven = pod(
        Container("a", amounts(cpu="1", memory="1Gi"), amounts(cpu="2", memory="1Gi")),
        Container("b", amounts(cpu="2", memory="1Gi"), amounts(cpu="1", memory="1Gi")),
    )
    assert uneven.qos is QOSClass.GUARANTEED


def test_init_containers_count_for_the_class() -> None:
    main = same(cpu="2", memory="1Gi")
    assert pod(main, init_containers=(Container("i"),)).qos is QOSClass.BURSTABLE
    assert pod(main, init_containers=(same("i", cpu="1", memory="1Gi"),)).qos is (
        QOSClass.GUARANTEED
    )


def test_the_resources_of_the_pod_decide_where_there_are_any() -> None:
    main = same(cpu="2", memory="1Gi")
    whole = amounts(cpu="4", memory="2Gi")
    assert pod(Container("c"), resources=PodResources(whole, whole)).qos is QOSClass.GUARANTEED
    assert pod(main, resources=PodResources(whole)).qos is QOSClass.BURSTABLE
    # Even empty ones.
    assert pod(main, resources=PodResources()).qos is QOSClass.BEST_EFFORT
    assert not pod(main, resources=PodResources()).has_pod_level_resources
    assert not pod(main, resources=PodResources(amounts(gpu="1"))).has_pod_level_resources
    assert pod(main, resources=PodResources(whole)).has_pod_level_resources


@pytest.mark.parametrize(
    ("cpu", "exclusive"),
    [("2", 2), ("2000m", 2), ("2.0", 2), ("2e0", 2), ("1500m", 0), ("2000001u", 0), ("100m", 0)],
)
def test_whole_cpus_are_exclusive(cpu: str, exclusive: int) -> None:
    container = same(cpu=cpu, memory="1Gi")
    assert guaranteed_cpus(pod(container), container) == exclusive


def test_only_guaranteed_pods_are_exclusive() -> None:
    container = same(cpu="2")
    assert guaranteed_cpus(pod(container), container) == 0


@pytest.mark.parametrize(
    ("inits", "mains", "expected"),
    [
        ([], ["2", "3"], 5),
        ([("8", False)], ["2", "3"], 8),
        ([("8", False), ("9", False)], ["2"], 9),
        ([("1", True)], ["2", "3"], 6),
        ([("1", True), ("6", False)], ["2", "3"], 7),
        ([("6", False), ("1", True)], ["2", "3"], 6),
        ([("1", True), ("500m", False)], ["500m"], 1),
    ],
)
def test_the_most_cpus_at_any_one_time(
    inits: list[tuple[str, bool]], mains: list[str], expected: int
) -> None:
    subject = pod(
        *(same(f"c{i}", cpu=cpu, memory="1Gi") for i, cpu in enumerate(mains)),
        init_containers=tuple(
            same(f"i{i}", "Always" if sidecar else None, cpu=cpu, memory="1Gi")
            for i, (cpu, sidecar) in enumerate(inits)
        ),
    )
    assert pod_guaranteed_cpus(subject) == expected


def test_what_a_pod_requests() -> None:
    subject = pod(
        same("a", cpu="1", memory="1Gi"),
        same("b", cpu="500m"),
        init_containers=(
            same("early", memory="3Gi"),
            same("side", "Always", cpu="1", memory="1Gi"),
            same("late", cpu="3", gpu="1"),
        ),
        overhead=amounts(cpu="250m", memory="120Mi"),
    )
    assert printed(container_requests(subject)) == {"cpu": "4", "memory": "3Gi", "gpu": "1"}
    assert printed(pod_requests(subject)) == {"cpu": "4250m", "memory": "3192Mi", "gpu": "1"}
    assert printed(pod_limits(subject)) == {"cpu": "4250m", "memory": "3192Mi", "gpu": "1"}


def test_the_resources_of_the_pod_stand_for_those_of_its_containers() -> None:
    subject = pod(
        same(cpu="1", memory="1Gi", gpu="2"),
        resources=PodResources(amounts(cpu="4", gpu="9"), amounts(memory="8Gi")),
        overhead=amounts(cpu="1", memory="1Gi"),
    )
    assert printed(pod_requests(subject)) == {"cpu": "5", "memory": "2Gi", "gpu": "2"}
    assert printed(pod_limits(subject)) == {"cpu": "2", "memory": "9Gi", "gpu": "2"}


def test_overhead_makes_no_limit() -> None:
    assert pod_limits(pod(Container("c"), overhead=amounts(cpu="1"))) == {}


def test_limits_are_the_requests_that_are_not_given() -> None:
    subject = apply_defaults(pod(Container("c", amounts(cpu="1"), amounts(cpu="2", memory="1Gi"))))
    (container,) = subject.containers
    assert printed(dict(container.requests)) == {"cpu": "1", "memory": "1Gi"}
    assert apply_defaults(pod(Container("c", {}, amounts(cpu="2", memory="1Gi")))).qos is (
        QOSClass.GUARANTEED
    )


def test_quantities_are_rounded_up_to_a_thousandth() -> None:
    subject = apply_defaults(pod(Container("c", amounts(cpu="0.0005"))))
    assert printed(dict(subject.containers[0].requests)) == {"cpu": "1m"}


def test_defaults_of_the_pod() -> None:
    subject = apply_defaults(
        pod(
            same("a", cpu="1", hugepages_2Mi="4Mi"),
            Container("b", amounts(cpu="1", memory="1Gi")),
            resources=PodResources({}, amounts(cpu="4", memory="8Gi")),
        )
    )
    assert subject.resources is not None
    assert printed(dict(subject.resources.requests)) == {
        "cpu": "2",
        "memory": "1Gi",
        "hugepages-2Mi": "4Mi",
    }
    assert printed(dict(subject.resources.limits)) == {
        "cpu": "4",
        "memory": "8Gi",
        "hugepages-2Mi": "4Mi",
    }


def test_a_pod_of_the_api() -> None:
    subject = pod_from_api(
        {
            "metadata": {"name": "web", "namespace": "prod", "uid": "1-2"},
            "spec": {
                "priority": 2_000_001_000,
                "priorityClassName": "system-node-critical",
                "initContainers": [{"name": "side", "restartPolicy": "Always"}],
                "containers": [{"name": "c", "resources": {"limits": {"cpu": 2, "memory": 1.5}}}],
                "overhead": {"cpu": "1m"},
                "resources": {"requests": {"cpu": "1"}},
            },
        }
    )
    assert (subject.uid, subject.name, subject.namespace) == ("1-2", "web", "prod")
    assert subject.init_containers[0].is_sidecar
    assert subject.containers[0].limits["memory"] == Quantity.parse("1500m")
    assert subject.is_node_critical
    assert not subject.static
    assert subject.has_pod_level_resources


def test_what_an_empty_pod_is_called() -> None:
    subject = pod_from_api({"metadata": {"name": "web"}})
    assert (subject.uid, subject.namespace, subject.is_critical) == (
        "default/web",
        "default",
        False,
    )


def test_a_static_pod_is_critical() -> None:
    mark = {"kubernetes.io/config.source": "file"}
    subject = pod_from_api({"metadata": {"name": "p", "annotations": mark}})
    assert (subject.static, subject.is_critical, subject.is_node_critical) == (True, True, False)


def test_a_quantity_of_null_is_nothing() -> None:
    """As the API server has it: a limit of null is one of 0, and no limit that is not there."""
    resources = {"limits": {"cpu": None, "memory": "1Gi"}, "requests": {"memory": None}}
    manifest = with_container(resources=resources)
    (container,) = pod_from_api(manifest).containers
    assert {name: str(amount) for name, amount in container.limits.items()} == {
        "cpu": "0",
        "memory": "1Gi",
    }
    assert str(container.requests["memory"]) == "0"


def with_container(**fields: object) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c"} | fields]}}


@pytest.mark.parametrize(
    ("manifest", "path", "problem"),
    [
        ({"metadata": []}, "metadata", "must be a mapping, not a list"),
        ({"metadata": {"name": 5}}, "metadata.name", "must be a string, not a number (quote it)"),
        ({"spec": "x"}, "spec", "must be a mapping, not a string"),
        ({"spec": {"priority": "1"}}, "spec.priority", "must be an integer, not '1'"),
        ({"spec": {"priority": True}}, "spec.priority", "must be an integer, not True"),
        ({"spec": {"containers": {}}}, "spec.containers", "must be a list, not a mapping"),
        ({"spec": {"containers": [1]}}, "spec.containers[0]", "must be a mapping, not a number"),
        ({"spec": {"containers": [{}]}}, "spec.containers[0].name", "Required value"),
        (
            {"spec": {"initContainers": [{"name": "i", "restartPolicy": 1}]}},
            "spec.initContainers[0].restartPolicy",
            "must be a string, not a number (quote it)",
        ),
        (
            with_container(resources={"requests": {"cpu": "2 cores"}}),
            "spec.containers[0].resources.requests.cpu",
            "Invalid value: '2 cores': quantities must match the regular expression",
        ),
        (
            with_container(resources={"limits": {"memory": True}}),
            "spec.containers[0].resources.limits.memory",
            "must be a quantity such as 500m or 1Gi, not a boolean",
        ),
        (
            with_container(resources={"limits": {"memory": float("nan")}}),
            "spec.containers[0].resources.limits.memory",
            "Invalid value: 'nan': quantities",
        ),
        (
            with_container(resources={"limits": {"cpu": 10**9999}}),
            "spec.containers[0].resources.limits.cpu",
            "Invalid value: a number beyond any resource",
        ),
        ({"spec": {"resources": {"limits": 3}}}, "spec.resources.limits", "must be a mapping"),
        ({"spec": {"overhead": {"cpu": []}}}, "spec.overhead.cpu", "must be a quantity"),
    ],
)
def test_an_error_names_the_field(manifest: dict[str, Any], path: str, problem: str) -> None:
    with pytest.raises(PodError) as error:
        pod_from_api(manifest)
    assert error.value.path == path
    assert error.value.problem.startswith(problem)
    assert str(error.value) == f"{path}: {error.value.problem}"


def test_an_error_names_where_the_pod_is() -> None:
    with pytest.raises(PodError, match=r"^spec\.template\.spec\.containers: must be a list"):
        pod_from_api({"spec": {"containers": 1}}, "spec.template.")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.data())
def test_any_json_is_a_pod_or_a_pod_error(data: st.DataObject) -> None:
    """Any value in the place of any field."""
    any_value = json_values

    def some(names: list[str], inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        mapping = st.dictionaries(st.sampled_from(names), inner | any_value, max_size=4)
        return mapping | any_value

    amounts = some(["cpu", "memory", "hugepages-2Mi"], st.sampled_from(["1", "2Gi", "x", 3, 0.5]))
    resources = some(["requests", "limits"], amounts)
    container = some(["name", "resources", "restartPolicy"], resources | st.just("Always"))
    spec = some(
        ["containers", "initContainers", "overhead", "resources", "priority"],
        st.lists(container, max_size=2) | resources | amounts,
    )
    metadata = some(["name", "uid", "annotations", "creationTimestamp"], st.just({}))
    manifest = data.draw(
        st.fixed_dictionaries({}, optional={"metadata": metadata, "spec": spec | any_value})
    )
    try:
        subject = pod_from_api(manifest)
    except PodError:
        return
    pod_requests(apply_defaults(subject))


@given(json_values)
def test_any_value_is_a_quantity_or_a_pod_error(value: object) -> None:
    with suppress(PodError):
        quantity_from_api(value, "cpu").milli_value()


def test_what_is_remembered_of_a_pod_is_not_that_of_a_changed_one() -> None:
    before = pod(Container("c", amounts(cpu="2", memory="1Gi"), amounts(cpu="2", memory="1Gi")))
    assert exclusive_requests(before) is exclusive_requests(before)
    after = replace(before, containers=(Container("c", amounts(cpu="2"), amounts(cpu="2")),))
    assert (exclusive_requests(before), exclusive_requests(after)) == ({"c": 2}, {})
    assert (set(container_limits(before)), set(container_limits(after))) == ({CPU, MEMORY}, {CPU})
