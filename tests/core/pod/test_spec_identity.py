"""When two manifests are the same pod, and what is told where they are not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.spec_identity import Resized, differences, resized


def pod(**spec: Any) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "64Mi"}
    first = {
        "name": "main",
        "command": ["serve"],
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
    }
    second = {"name": "side", "command": ["watch"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db", "uid": "u", "annotations": {"a": "b"}},
        "spec": {"containers": [first, second], **spec},
    }


def owner(**resources: dict[str, str]) -> dict[str, Any]:
    """A pod whose one container has its CPUs to itself, unless it asks for something else."""
    one = pod()
    del one["spec"]["containers"][1]
    one["spec"]["containers"][0]["resources"].update(resources)
    return one


def changed(path: str, value: object) -> dict[str, Any]:
    """The pod with another value at a place such as ``spec.containers.0.image``."""
    other = pod()
    holder: Any = other
    *way, last = path.split(".")
    for step in way:
        holder = holder[int(step)] if step.isdigit() else holder.setdefault(step, {})
    holder[int(last) if last.isdigit() else last] = value
    return other


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.restartPolicy", "Always"),
        ("spec.terminationGracePeriodSeconds", 30),
        ("spec.volumes", []),
        ("spec.initContainers", None),
        ("spec.containers.0.args", []),
        ("spec.containers.0.resources.limits.cpu", "2000m"),
        ("spec.containers.0.resources.limits.memory", "65536Ki"),
        ("spec.containers.0.resources.requests.cpu", 2),
        ("spec.containers.0.livenessProbe", {"exec": {"command": ["true"]}}),
        ("metadata.uid", "another"),
        ("metadata.creationTimestamp", "2026-01-01T00:00:00Z"),
        ("metadata.namespace", "default"),
        ("status", {"phase": "Running"}),
    ],
)
def test_what_comes_to_the_same_is_the_same_pod(path: str, value: object) -> None:
    assert differences(pod(), changed(path, value)) == ()
    assert differences(changed(path, value), pod()) == ()


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec.restartPolicy", "Never", "spec.restartPolicy (not set -> Never)"),
        (
            "spec.terminationGracePeriodSeconds",
            0,
            "spec.terminationGracePeriodSeconds (not set -> 0)",
        ),
        ("spec.containers.1.command", ["look"], "spec.containers[1].command[0] (watch -> look)"),
        ("spec.containers.1.command", ["watch", "-v"], "spec.containers[1].command"),
        ("spec.containers.0.env.0.value", "2", "spec.containers[0].env[0].value (1 -> 2)"),
        (
            "spec.containers.0.resources.limits.memory",
            "128Mi",
            "spec.containers[0].resources.limits.memory (64Mi -> 128Mi)",
        ),
        ("metadata.annotations.a", "c", "metadata.annotations.a (b -> c)"),
    ],
)
def test_what_differs_is_named(path: str, value: object, told: str) -> None:
    (found,) = differences(pod(), changed(path, value))
    assert str(found) == told
    assert resized(pod(), changed(path, value)) == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.restartPolicy", "Always"),
        ("spec.terminationGracePeriodSeconds", 30),
        ("spec.enableServiceLinks", True),
        ("spec.containers.0.livenessProbe", {"exec": {"command": ["true"]}}),
        ("spec.containers.0.resources.requests", None),
        ("spec.securityContext", {}),
    ],
)
def test_a_default_that_is_written_out_is_not_told_beside_what_differs(
    path: str, value: object
) -> None:
    other = changed(path, value)
    other["spec"]["containers"][1]["command"] = ["look"]
    for one, another in ((pod(), other), (other, pod())):
        (found,) = differences(one, another)
        assert found.path == "spec.containers[1].command[0]"


def test_what_is_written_out_hides_no_resize() -> None:
    other = owner()
    for kind in ("limits", "requests"):
        other["spec"]["containers"][0]["resources"][kind]["cpu"] = "3"
    other["spec"]["restartPolicy"] = "Always"
    assert resized(owner(), other) == (Resized("main", 3),)
    # Limits alone say the requests, too.
    del other["spec"]["containers"][0]["resources"]["requests"]
    assert resized(owner(), other) == (Resized("main", 3),)


@given(
    before=st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "1", "2"])),
    after=st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "1", "2"])),
    restart=st.sampled_from([None, "Always", "Never"]),
)
def test_what_is_told_is_all_that_has_to_be_undone(
    before: dict[str, str], after: dict[str, str], restart: str | None
) -> None:
    def of(labels: dict[str, str], **spec: Any) -> dict[str, Any]:
        made = pod(**spec)
        made["metadata"]["labels"] = labels
        return made

    one, other = of(before), of(after, restartPolicy=restart)
    undone = copy.deepcopy(other)
    for difference in differences(one, other):
        *way, last = difference.path.split(".")
        holder = undone
        for step in way:
            holder = holder[step]
        if difference.before is None:
            del holder[last]
        else:
            holder[last] = difference.before
    assert differences(one, undone) == ()


def test_where_whole_cpus_are_all_that_differs_they_can_be_resized() -> None:
    other = owner()
    for kind in ("limits", "requests"):
        other["spec"]["containers"][0]["resources"][kind]["cpu"] = "3000m"
    found = differences(owner(), other)
    assert [one.path.rpartition("[0].")[2] for one in found] == [
        "resources.limits.cpu",
        "resources.requests.cpu",
    ]
    assert resized(owner(), other) == (Resized("main", 3),)
    other["spec"]["containers"][0]["command"] = ["other"]
    assert resized(owner(), other) == ()


@pytest.mark.parametrize("amount", ["2500m", "500m"])
def test_a_share_is_nothing_to_resize(amount: str) -> None:
    other = owner()
    for kind in ("limits", "requests"):
        other["spec"]["containers"][0]["resources"][kind]["cpu"] = amount
    assert resized(owner(), other) == ()


def test_what_is_no_pod_is_told() -> None:
    with pytest.raises(PodError, match="containers"):
        differences(pod(), pod(containers=[]))


@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_is_nothing(random: Any) -> None:
    def mixed(value: Any) -> Any:
        if isinstance(value, dict):
            keys = list(value)
            random.shuffle(keys)
            return {key: mixed(value[key]) for key in keys}
        return [mixed(one) for one in value] if isinstance(value, list) else value

    other = mixed(copy.deepcopy(pod()))
    assert differences(pod(), other) == differences(other, json.loads(json.dumps(pod()))) == ()


@given(cpus=st.integers(1, 64), more=st.integers(1, 64))
def test_a_resize_is_offered_for_what_is_asked(cpus: int, more: int) -> None:
    def of(count: int) -> dict[str, Any]:
        amounts = {"cpu": str(count), "memory": "64Mi"}
        return owner(limits=amounts, requests=amounts)

    assert resized(of(cpus), of(more)) == (() if cpus == more else (Resized("main", more),))


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        ({}, {"cpu": "1"}),
        ({"cpu": "2"}, {"cpu": "1"}),
        ({"cpu": "4", "memory": "64Mi"}, {"cpu": "1", "memory": "64Mi"}),
        ({"cpu": "2"}, {}),
    ],
)
def test_who_has_no_cpus_of_its_own_is_not_resized(
    limits: dict[str, str], requests: dict[str, str]
) -> None:
    before = owner(limits=limits, requests=requests)
    after = owner(limits=limits, requests={**requests, "cpu": "1500m"})
    assert differences(before, after)
    assert resized(before, after) == ()


def test_beside_a_container_without_limits_nobody_has_cpus_of_its_own() -> None:
    amounts = {"cpu": "3", "memory": "64Mi"}
    after = pod()
    after["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    assert differences(pod(), after)
    assert resized(pod(), after) == ()
