"""Pods that ask for classes are bound to raw names: what is added, what is refused, and why."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.classes.binding import MOST, BoundPod, NotBindableError, bound_pod
from pinfold.core.classes.bound import Bound, bound_key, bound_text, parsed_bound
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import class_resource
from pinfold.core.classes.placing import pools_of
from pinfold.core.classes.raw_names import RawName, Unbindable, raw_names
from pinfold.core.classes.resource_class import (
    CLUSTERLEVEL,
    EXISTS,
    IN,
    NOT_IN,
    ProvisionConfig,
    Requirement,
    ResourceClass,
)
from pinfold.core.pod.api import PodError
from pinfold.core.values.quantity import Quantity
from tests.cluster.api_server.patches import patched

GPU, NIC = "nvidia.com/gpu", "x.y/nic"
NAMES: Mapping[str, RawName | Unbindable] = {
    "gold": RawName(GPU, 2),
    "silver": RawName(GPU, 1),
    "nic": RawName(NIC, 1),
    "license": RawName(""),
    "odd": Unbindable("class odd: its devices go by several names here, a.b/c, a.b/d"),
}


def container(name: str = "main", /, **amounts: object) -> dict[str, Any]:
    """One that asks for these as an API server shows it: requests are as limits."""
    resources = {class_resource(one) if one in NAMES else one: n for one, n in amounts.items()}
    shown = {"limits": resources, "requests": dict(resources)} if resources else {}
    return {"name": name, "image": "i", "resources": shown}


def pod(*containers: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", **metadata}, "spec": {"containers": list(containers)}}


def after(asked: dict[str, Any], found: BoundPod) -> dict[str, Any]:
    """The pod as the patch makes it; the one that was asked for stays as it was."""
    patch = json.dumps(msgspec.to_builtins(list(found.patch))).encode()
    return dict(patched(copy.deepcopy(asked), "application/json-patch+json", patch))


def test_the_raw_name_is_added_and_the_class_stays() -> None:
    asked = pod(container(gold="2", cpu="1"))
    found = after(asked, bound_pod(asked, NAMES))
    wanted = {class_resource("gold"): "2", "cpu": "1", GPU: "2"}
    assert found["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}
    assert found["metadata"]["annotations"] == {bound_key("main"): f"gold={GPU}:2"}


def test_it_is_on_top_of_what_is_asked_for_by_the_raw_name() -> None:
    asked = pod(container(**{"gold": "2", "silver": "1", GPU: "3", "nic": "1"}))
    found = after(asked, bound_pod(asked, NAMES))
    limits = found["spec"]["containers"][0]["resources"]["limits"]
    assert (limits[GPU], limits[NIC]) == ("6", "1")
    text = found["metadata"]["annotations"][bound_key("main")]
    assert text == f"gold={GPU}:2,nic={NIC}:1,silver={GPU}:1"


def test_each_container_has_its_own_binding_and_sidecars_too() -> None:
    asked = pod(container("app", gold=1), container("other"), annotations={"a": "b"})
    sidecar = container("proxy", nic="2") | {"restartPolicy": "Always"}
    asked["spec"]["initContainers"] = [container("init", gold="4"), sidecar]
    found = after(asked, bound_pod(asked, NAMES))
    assert found["metadata"]["annotations"] == {
        "a": "b",
        bound_key("app"): f"gold={GPU}:1",
        bound_key("init"): f"gold={GPU}:4",
        bound_key("proxy"): f"nic={NIC}:2",
    }
    assert found["spec"]["containers"][1] == asked["spec"]["containers"][1]


def test_a_class_of_the_cluster_level_and_none_of_a_class_add_nothing() -> None:
    for amounts in ({"license": "1"}, {"gold": "0"}, {"cpu": "1"}):
        assert bound_pod(pod(container(**amounts)), NAMES) == BoundPod((), {})


@pytest.mark.parametrize("resources", [{}, {"limits": {}}, None, {"claims": []}])
def test_maps_that_are_not_there_are_added(resources: Any) -> None:
    only = {class_resource("gold"): "1"}
    asked = pod(container() | {"resources": {**(resources or {}), "limits": only}})
    found = after(asked, bound_pod(asked, NAMES))
    shown = found["spec"]["containers"][0]["resources"]
    assert (shown["requests"], shown["limits"]) == ({GPU: "1"}, {**only, GPU: "1"})


def unequal(limit: str, request: str) -> dict[str, Any]:
    name = class_resource("gold")
    return container() | {"resources": {"limits": {name: limit}, "requests": {name: request}}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (pod(unequal("2", "1")), r"requests\[class.pinfold.dev/gold\]: is 1, and has to be the limit"),
    (pod(container(gold="500m")), "has to be a whole number"),
    (pod(container(gold="-1")), "has to be a whole number"),
    (pod(container(gold="2G")), f"may be {MOST} at most"),
    (pod(container(gold=10**30)), f"may be {MOST} at most"),
    (pod(container(odd=1)), "several names here, a.b/c, a.b/d .pinfold convert"),
    (pod(container("x" * 54, gold="1")), "has 54 characters; a container that asks for a class"),
    (
        pod(container() | {"resources": {"limits": {class_resource("glod"): "1"}}}),
        "there is no class glod; there is gold",
    ),
    (
        pod(container() | {"resources": {"requests": {class_resource("gold"): "1"}}}),
        r"limits\[class.pinfold.dev/gold\]: has to be there",
    ),
    (
        pod(container(gold=1)) | {"spec": {"containers": [container(gold=1)], "nodeName": "n"}},
        "spec.nodeName: n: a pod that asks for a class is placed by the scheduler",
    ),
    (pod(container(gold=1), annotations={bound_key("main"): "gold"}), "must be CLASS=RESOURCE"),
    (
        pod(container(gold=1), annotations={bound_key("main"): f"gold={GPU}:2"}),
        f"says gold={GPU}:2, and the pod is bound to gold={GPU}:1",
    ),
    (
        pod(container(gold=1), annotations={bound_key("main"): f"gold={GPU}:1"}),
        r"limits\[nvidia.com/gpu\]: is 0, and the pod's annotation says 1",
    ),
    (
        pod(container(**{GPU: 1}), annotations={bound_key("main"): f"gold={GPU}:1"}),
        "and the pod is bound to nothing",
    ),
    (pod(container(), annotations={bound_key("else"): ""}), "asks for no class"),
    (pod(container(license=1), annotations={bound_key("main"): ""}), "asks for no class"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_given_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(NotBindableError, match=said):
        bound_pod(asked, NAMES)


@pytest.mark.parametrize("wrong", ["spec", "metadata"])
def test_what_is_no_pod_is_told(wrong: str) -> None:
    with pytest.raises(PodError, match=wrong):
        bound_pod(pod() | {wrong: 3}, NAMES)


def test_where_devices_are_from_is_no_matter_when_a_pod_is_created_again() -> None:
    has = f"gold={GPU}:1@node-1-nvidia.com-gpu-1"
    asked = pod(container(**{"gold": "1", GPU: "1"}), annotations={bound_key("main"): has})
    found = bound_pod(asked, NAMES)
    assert [one.op for one in found.patch] == ["replace"]
    assert after(asked, found)["metadata"]["annotations"][bound_key("main")] == f"gold={GPU}:1"


def test_who_waits_for_a_node_is_told() -> None:
    found = bound_pod(pod(container(gold=1)), {"gold": RawName(GPU, 0)})
    assert found.notes == (f"class gold: no node has {GPU} of it now; the pod waits for one",)


AMOUNTS = st.dictionaries(
    st.sampled_from(["gold", "silver", "nic", "license", GPU, NIC, "cpu"]),
    st.integers(0, 5) | st.sampled_from(["0", "3", "1k"]),
    max_size=5,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
    made = [container(name, **draw(AMOUNTS)) for name in names]
    for one in made:
        if draw(st.booleans()):
            one["resources"].pop("requests", None)
    cut = draw(st.integers(0, len(made)))
    found = pod(*made[cut:])
    if made[:cut]:
        found["spec"]["initContainers"] = made[:cut]
    if draw(st.booleans()):
        found["metadata"]["annotations"] = draw(st.sampled_from([{}, {"a/b": "c"}]))
    return found


def amount(container: dict[str, Any], part: str, name: str) -> int:
    """How many; an API server has requests be as limits where they are not there."""
    limits = container["resources"].get("limits", {})
    held = {**limits, **container["resources"].get(part, {})}
    return Quantity.parse(str(held.get(name, 0))).value()


@given(pods())
def test_devices_add_up_and_a_second_time_changes_nothing(asked: dict[str, Any]) -> None:
    first = bound_pod(asked, NAMES)
    found = after(asked, first)
    again = bound_pod(found, NAMES)
    assert (again.patch, again.bound) == ((), first.bound)
    for key in ("initContainers", "containers"):
        for old, new in zip(asked["spec"].get(key, []), found["spec"].get(key, []), strict=True):
            said = parsed_bound(
                (found["metadata"].get("annotations") or {}).get(bound_key(old["name"]), "")
            )
            for part in ("limits", "requests"):
                for raw in (GPU, NIC):
                    more = sum(
                        amount(old, part, class_resource(name))
                        for name, one in NAMES.items()
                        if isinstance(one, RawName) and one.resource == raw
                    )
                    assert amount(new, part, raw) == amount(old, part, raw) + more
                    assert more == sum(one.count for one in said if one.resource == raw)
                for name in NAMES:
                    of = class_resource(name)
                    assert amount(new, part, of) == amount(old, part, of)
            assert {**new, "resources": None} == {**old, "resources": None}


@given(pods())
def test_no_step_of_a_patch_is_without_effect(asked: dict[str, Any]) -> None:
    found = bound_pod(asked, NAMES)
    for at in range(len(found.patch)):
        less = BoundPod((*found.patch[:at], *found.patch[at + 1 :]), found.bound)
        assert after(asked, less) != after(asked, found)


# ------------------------------------------------------------------------------- raw names


def a_class(name: str, *requirements: Requirement, **fields: Any) -> ResourceClass:
    return ResourceClass(name, (requirements,) if requirements else (), **fields)


def has(node: str, resource: str, *kinds: str) -> list[ComputeResource]:
    """Of a node, one device of each kind."""
    return [
        ComputeResource(f"{node}-{kind}", node, resource, {"memory": kind}, Quantity(1))
        for kind in kinds
    ]


BIG = Requirement("memory", IN, ("big",))
ANY = Requirement("memory", EXISTS)


def raw(one: ResourceClass, *resources: list[ComputeResource]) -> RawName | Unbindable:
    listed = [each for some in resources for each in some]
    return raw_names([one], _by_name(pools_of([one], listed)))[one.name]


def _by_name(pools: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (node, resource), pool in pools.items():
        found.setdefault(resource, {})[node] = pool
    return found


def test_a_class_has_the_raw_name_of_the_nodes_that_have_nothing_else() -> None:
    one = a_class("big", BIG)
    assert raw(one, has("n1", GPU, "big"), has("n2", GPU, "small")) == RawName(GPU, 1)
    # A node where others are, too, does not keep pods from the rest.
    assert raw(one, has("n1", GPU, "big"), has("n2", GPU, "small", "big")) == RawName(GPU, 1)


@pytest.mark.parametrize(
    ("one", "resources", "said"),
    [
        (a_class("big", BIG), [*has("n", GPU, "big", "s")], "on the node that has devices of it"),
        (
            a_class("big", BIG),
            [*has("n", GPU, "big", "s"), *has("m", GPU, "big", "s")],
            "on all 2 nodes that have devices of it, m, n, nvidia.com/gpu is of other",
        ),
        (
            a_class("any", ANY),
            [*has("n", GPU, "a"), *has("m", NIC, "a")],
            f"its devices go by several names here, {GPU}, {NIC}",
        ),
        (a_class("any", ANY), [*has("n", "cpu", "a")], "it stands for cpu"),
        (a_class("any", ANY), [], "no node tells of devices of it"),
        (a_class("none"), has("n", GPU, "a"), "no node tells of devices of it"),
    ],
)
def test_why_a_class_has_none(
    one: ResourceClass, resources: list[ComputeResource], said: str
) -> None:
    found = raw(one, resources)
    assert isinstance(found, Unbindable)
    assert said in str(found)


def test_whose_devices_others_may_have_by_their_priority_is_told_so() -> None:
    classes = [
        a_class("low", BIG),
        a_class("high", BIG, priority=1),
        a_class("net", ANY, priority=2, provision=ProvisionConfig(CLUSTERLEVEL)),
    ]
    found = raw_names(classes, _by_name(pools_of(classes, has("n", GPU, "big"))))
    assert found["high"] == RawName(GPU, 1)
    assert "no node tells of devices of it that no class of a higher priority has (high)," in str(
        found["low"]
    )
    assert "(give it their priority, wait" in str(found["low"])


def test_before_any_node_tells_the_selector_may_say_it() -> None:
    named = Requirement("resourceName", IN, (GPU,))
    assert raw(a_class("g", named, BIG)) == RawName(GPU, 0)
    either = ResourceClass("g", ((named,), (BIG,)))
    assert isinstance(raw(either), Unbindable)
    assert isinstance(raw(a_class("g", Requirement("resourceName", IN, (GPU, NIC)))), Unbindable)


def test_a_class_keeps_its_raw_name_while_no_more_nodes_have_another() -> None:
    one = a_class("big", BIG, last_raw_name=GPU)
    gpus, nics = has("n1", GPU, "big"), [*has("n2", NIC, "big"), *has("n3", NIC, "big")]
    assert raw(one, gpus, has("n4", GPU, "big"), nics) == RawName(GPU, 2, (NIC,))
    # The first node to tell may have been the one that is wrong.
    assert raw(one, gpus, nics) == RawName(NIC, 2, (GPU,))
    # Where no node tells of any, as while a plugin is restarted, who asks for it waits.
    assert raw(one) == RawName(GPU, 0)
    assert raw(one, has("n1", GPU, "small")) == RawName(GPU, 0)
    # What none has so any more is given up for what there is.
    assert raw(one, nics) == RawName(NIC, 2)
    mixed = raw(one, has("n1", GPU, "big", "small"))
    assert isinstance(mixed, Unbindable)
    assert "is of other classes, too" in mixed.problem


def test_a_raw_name_that_a_class_selects_no_more_is_not_kept() -> None:
    nic = Requirement("resourceName", IN, (NIC,))
    other = Requirement("resourceName", NOT_IN, (GPU,))
    assert raw(a_class("g", nic, last_raw_name=GPU)) == RawName(NIC, 0)
    for one in (a_class("g", other, last_raw_name=GPU), a_class("g", last_raw_name=GPU)):
        assert isinstance(raw(one), Unbindable)
    either = ResourceClass("g", ((other,), (BIG,)), last_raw_name=GPU)
    assert raw(either) == RawName(GPU, 0)
    for text in ("cpu", "class.pinfold.dev/g", "no name"):
        assert isinstance(raw(a_class("g", BIG, last_raw_name=text)), Unbindable)


def test_a_class_of_the_cluster_level_needs_none() -> None:
    one = a_class("license", ANY, provision=ProvisionConfig(CLUSTERLEVEL))
    assert raw(one) == raw(one, has("n", GPU, "a")) == RawName("")


@given(
    st.lists(
        st.builds(Bound, st.sampled_from("abc"), st.just(GPU), st.integers(1, 9)),
        unique_by=lambda one: one.class_name,
    )
)
def test_annotations_are_read_as_they_are_written(bound: list[Bound]) -> None:
    assert parsed_bound(bound_text(bound)) == tuple(bound)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["resources", "limits", "requests", "name", class_resource("gold"), GPU, "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "metadata": JSON | st.fixed_dictionaries({"annotations": JSON}),
            "spec": JSON
            | st.fixed_dictionaries(
                {}, optional={"containers": JSON | st.lists(JSON), "initContainers": st.lists(JSON)}
            ),
        },
    )
)
def test_whatever_a_pod_is_it_is_bound_or_refused(asked: dict[str, Any]) -> None:
    try:
        found = bound_pod(asked, NAMES)
    except (NotBindableError, PodError):
        return
    assert bound_pod(after(asked, found), NAMES).patch == ()
