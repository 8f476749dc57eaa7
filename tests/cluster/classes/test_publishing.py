"""A publisher of compute resources: what is there at rest, whatever fails and whoever meddles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.cluster.classes.publishing import Publisher
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.published import CLUSTER_LABELS, node_labels
from pinfold.core.values.names import label_value_problems
from pinfold.core.values.quantity import Quantity
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, NotFoundError, Object, refusal
from tests.scenes.manager_harness import run_virtually
from tests.scenes.published_node import GPU, NODE, OWNER, PublishedNode, writes

Scenario = Callable[[PublishedNode], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """A node with an agent, and what happens to it."""

    async def run() -> None:
        node = PublishedNode(FakeCluster())
        try:
            await scenario(node)
            assert node.lost == set()
        finally:
            await node.kill()

    run_virtually(run())


def test_what_a_node_has_is_published_once() -> None:
    async def scenario(node: PublishedNode) -> None:
        node.become({"gpu-0": "K80", "gpu-1": "K80", "gpu-2": "P100"})
        node.start()
        await node.rest()
        assert node.is_settled()
        found = {tuple(one["spec"]["devices"]): one for one in node.objects().values()}
        one = found["gpu-0", "gpu-1"]
        assert one["spec"] == {
            "nodeName": NODE,
            "resourceName": GPU,
            "properties": {"type": "K80"},
            "devices": ["gpu-0", "gpu-1"],
        }
        assert one["status"] == {"capacity": "2"}
        assert one["metadata"]["labels"] == {"published-by.pinfold.dev/node": NODE}
        assert one["metadata"]["ownerReferences"] == [OWNER]
        # To rest costs nothing, and who comes next finds all as it is to be.
        done = list(node.requests)
        await node.rest(36000)
        assert node.requests == done
        await node.kill()
        node.start()
        await node.rest()
        assert writes(node) == [one for one in done if one in ("create", "update", "delete")]
        assert node.problems == []

    play(scenario)


def test_properties_that_change_while_pods_run() -> None:
    async def scenario(node: PublishedNode) -> None:
        node.become({"gpu-0": "K80", "gpu-1": "K80"})
        node.start()
        node.use({"gpu-1"})
        await node.rest()
        node.become({"gpu-0": "P100", "gpu-1": "P100"})
        await node.rest()
        assert {one.devices: one.properties["type"] for one in node.there().values()} == {
            ("gpu-0",): "P100",
            ("gpu-1",): "K80",
        }
        await node.kill()
        node.start()
        await node.rest()
        assert len(node.there()) == 2, "an agent that is started anew finds who has what"
        node.use(set())
        await node.rest()
        assert [one.devices for one in node.there().values()] == [("gpu-0", "gpu-1")]

    play(scenario)


def meddled(found: Object, **changes: Any) -> Object:
    return {**found, **changes}


def without_mark(found: Object, mark: str) -> Object:
    return {**found, "metadata": {k: v for k, v in found["metadata"].items() if k != mark}}


MEDDLING: dict[str, Callable[[Object], tuple[Object, str]]] = {
    "devices": lambda one: (meddled(one, spec={**one["spec"], "devices": ["x"]}), ""),
    "no devices": lambda one: (
        meddled(one, spec={k: v for k, v in one["spec"].items() if k != "devices"}),
        "",
    ),
    "properties": lambda one: (meddled(one, spec={**one["spec"], "properties": {}}), ""),
    "nonsense": lambda one: (meddled(one, spec={"nodeName": NODE, "x": "y"}), ""),
    "capacity": lambda one: (meddled(one, status={"capacity": "9"}), "status"),
    "owner": lambda one: (without_mark(one, "ownerReferences"), ""),
    "label": lambda one: (without_mark(one, "labels"), ""),
}


@pytest.mark.parametrize("what", MEDDLING)
def test_what_somebody_has_changed_is_put_back(what: str) -> None:
    async def scenario(node: PublishedNode) -> None:
        node.become({"gpu-0": "K80"})
        node.start()
        await node.rest()
        ((name, before),) = node.objects().items()
        before["metadata"]["annotations"] = {"somebody": "else's"}
        node.cluster.update(COMPUTE_RESOURCES, before)
        changed, subresource = MEDDLING[what](node.objects()[name])
        node.cluster.update(COMPUTE_RESOURCES, changed, subresource)
        node.others()
        await node.rest()
        (after,) = node.objects().values()
        for part in ("spec", "status"):
            assert after[part] == before[part]
        for part in ("labels", "ownerReferences"):
            assert after["metadata"][part] == before["metadata"][part]
        if what not in ("properties", "nonsense"):  # for which it was made anew
            assert after["metadata"]["annotations"] == {"somebody": "else's"}
        assert node.problems == []

    play(scenario)


def test_what_somebody_has_deleted_comes_back() -> None:
    async def scenario(node: PublishedNode) -> None:
        node.become({"gpu-0": "K80"})
        node.start()
        await node.rest()
        ((name, found),) = node.objects().items()
        node.cluster.delete(COMPUTE_RESOURCES, name)
        node.others()
        await node.rest()
        assert node.is_settled()
        # One that waits for a finalizer is not written to, and is made anew when it has gone.
        found = node.objects()[name]
        found["metadata"]["finalizers"] = ["somebody/else"]
        node.cluster.update(COMPUTE_RESOURCES, found)
        node.cluster.delete(COMPUTE_RESOURCES, name)
        await node.rest()
        done = list(node.requests)
        node.become({"gpu-0": "K80", "gpu-1": "K80"})
        await node.rest()
        assert node.requests == done
        found = node.objects()[name]
        del found["metadata"]["finalizers"]
        node.cluster.update(COMPUTE_RESOURCES, found)
        node.others()
        await node.rest()
        assert node.is_settled()
        assert node.problems == []

    play(scenario)


def test_objects_of_others_are_left_alone() -> None:
    async def scenario(node: PublishedNode) -> None:
        spec = {"nodeName": NODE, "resourceName": GPU, "devices": ["gpu-0"]}
        labels = dict(node_labels(NODE))
        by_hand = {"metadata": {"name": "by-hand"}, "spec": spec}
        elsewhere = {"metadata": {"name": "e", "labels": labels}, "spec": {**spec, "nodeName": "m"}}
        for one in (by_hand, elsewhere):
            node.cluster.create(COMPUTE_RESOURCES, one)
        before = node.objects()
        node.start()
        node.become({"gpu-0": "K80"})
        await node.rest()
        assert len(node.objects()) == 3
        node.become({})
        await node.rest()
        assert node.objects() == before
        assert node.problems == []

    play(scenario)


def test_a_name_that_is_somebody_elses_is_told_and_holds_up_no_other() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        theirs = cluster.create(
            COMPUTE_RESOURCES, {"metadata": {"name": "wan"}, "spec": {"resourceName": "a/wan"}}
        )
        problems: list[str] = []
        publisher = Publisher(FakeKubernetes(cluster), "", CLUSTER_LABELS, report=problems.append)
        task = asyncio.create_task(publisher.run())
        many = Quantity.parse("100")
        mine = [
            ComputeResource("wan", "", "a/wan", {}, many),
            ComputeResource("licences", "", "a/licence", {"of": "x"}, many),
        ]
        publisher.want(mine)
        await asyncio.sleep(600)
        assert cluster.read(COMPUTE_RESOURCES, "wan") == theirs
        assert cluster.read(COMPUTE_RESOURCES, "licences")["status"] == {"capacity": "100"}
        (problem,) = problems
        assert problem == (
            "compute resources are not published: ComputeResource wan is there already, and is "
            "somebody else's (delete it, or give it another name)"
        )
        assert publisher.problem
        cluster.delete(COMPUTE_RESOURCES, "wan")
        await asyncio.sleep(120)
        assert cluster.read(COMPUTE_RESOURCES, "wan")["spec"] == {
            "resourceName": "a/wan",
            "properties": {},
        }
        assert not publisher.problem
        # With other properties under its name it is made anew; who leaves the file goes.
        publisher.want([ComputeResource("wan", "", "a/wan", {"speed": "10G"}, many)])
        await asyncio.sleep(1)
        (left,) = cluster.chunk(COMPUTE_RESOURCES).objects
        assert left["spec"]["properties"] == {"speed": "10G"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtually(scenario())


def test_one_that_is_refused_holds_up_only_who_loses_devices_to_it() -> None:
    async def scenario(node: PublishedNode) -> None:
        node.become({"gpu-0": "K80", "gpu-1": "K80", "gpu-2": "P100"})
        node.start()
        await node.rest()
        before = node.there()
        names = iter(range(100))

        def refuse(verb: str, _resource: object) -> str:
            node.look()
            if verb == "create":
                next(names)
                raise refusal(422, "Invalid", "no such thing")
            return ""

        node.client.fails = refuse  # type: ignore[assignment] # it says nothing else
        node.become({"gpu-0": "V100", "gpu-1": "K80", "gpu-2": "P100", "gpu-3": "P100"})
        await node.rest()
        now = node.there()
        k80, p100 = sorted(before.values(), key=lambda one: one.properties["type"])
        assert now[k80.name] == k80, "it keeps what it cannot give away"
        assert now[p100.name].devices == ("gpu-2", "gpu-3")
        assert next(names) < 12, "later each time"
        assert node.problems == ["compute resources are not published: no such thing"]
        node.client.fails = lambda _verb, _resource: ""
        await node.rest()
        assert node.is_settled()

    play(scenario)


def test_without_the_kind_nothing_is_published_until_it_is_there() -> None:
    async def scenario(node: PublishedNode) -> None:
        node.error = refusal(404, "NotFound", "the server could not find the requested resource")
        node.become({"gpu-0": "K80"})
        node.start()
        await node.rest()
        assert set(node.requests) == {"list"}
        (problem,) = node.problems
        assert "could not find the requested resource" in problem
        node.error = None
        await node.rest()
        assert node.is_settled()

    play(scenario)


def test_an_owner_that_is_not_there_is_waited_for() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        there = asyncio.Event()

        async def owner() -> dict[str, Any]:
            if not there.is_set():
                raise NotFoundError("there is no node n1", status=404)
            return OWNER

        publisher = Publisher(FakeKubernetes(cluster), NODE, node_labels(NODE), owner=owner)
        task = asyncio.create_task(publisher.run())
        publisher.want([ComputeResource("n1-cpu", NODE, "cpu", {}, Quantity(4))])
        await asyncio.sleep(100)
        assert "there is no node n1" in publisher.problem
        there.set()
        await asyncio.sleep(100)
        (found,) = cluster.chunk(COMPUTE_RESOURCES).objects
        del found["metadata"]["ownerReferences"]
        there.clear()
        cluster.update(COMPUTE_RESOURCES, found)
        await asyncio.sleep(100)
        assert publisher.problem
        there.set()
        await asyncio.sleep(100)
        (found,) = cluster.chunk(COMPUTE_RESOURCES).objects
        assert found["metadata"]["ownerReferences"] == [OWNER]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtually(scenario())


def test_who_undoes_it_each_time_is_no_reason_to_write_without_a_pause() -> None:
    async def scenario(node: PublishedNode) -> None:
        node.become({"gpu-0": "K80"})
        node.start()
        update = node.cluster.update

        def stripped(resource: Any, changed: Any, subresource: str = "") -> Object:
            return update(resource, {**changed, "status": {}}, subresource)

        node.cluster.update = stripped  # type: ignore[method-assign] # an admission of somebody's
        await node.rest(600)
        assert len(writes(node)) < 20
        (problem,) = node.problems
        assert "set the capacity of n1-nvidia.com-gpu-" in problem
        assert problem.endswith("it was done, and somebody undid it")

    play(scenario)


CHANGES: list[dict[str, str]] = [
    {"gpu-0": "a", "gpu-1": "a"},
    {"gpu-0": "b", "gpu-1": "a", "gpu-2": "b"},
    {"gpu-0": "b", "gpu-1": "b", "gpu-2": "a"},
    {"gpu-2": "b"},
]


def life(failing: dict[int, Any]) -> int:
    """Change after change, with failures at some requests; how many requests there were."""
    count = 0

    async def scenario(node: PublishedNode) -> None:
        nonlocal count
        node.failing = failing
        node.start()
        for number, kinds in enumerate(CHANGES):
            node.become(kinds)
            await node.rest()
            assert node.is_settled()
            node.use({f"gpu-{number % 3}"})
            await node.rest()
            assert node.is_settled()
        count = len(node.requests)

    play(scenario)
    return count


@pytest.mark.parametrize("moment", ["before", "after"])
def test_each_request_may_fail(moment: str) -> None:
    count = life({})
    assert count > 15
    for number in range(1, count + 1):
        life({number: moment})
        life({number: moment, number + 1: moment, number + 2: "after"})


DEVICES = st.sampled_from([f"gpu-{number}" for number in range(4)])
TROUBLES = ("compact", "disconnect", "lag", "catch up", "back up", "restore")
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(
            st.just("become"), st.dictionaries(DEVICES, st.sampled_from(["a", "b"]), max_size=4)
        ),
        st.tuples(st.just("use"), st.sets(DEVICES)),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("turns"), st.integers(1, 12)),
        st.tuples(st.just("fail"), st.sampled_from(["before", "after"])),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("edit"), st.integers(0, 3)),
        st.tuples(
            st.just("server"),
            st.sampled_from(["compact", "disconnect", "lag", "catch up", "back up", "restore"]),
        ),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(HAPPENINGS)
def test_whatever_happens_in_whatever_order(happenings: list[tuple[str, Any]]) -> None:
    async def scenario(node: PublishedNode) -> None:
        node.start()
        backup = node.cluster.backup()
        for what, value in happenings:
            names = sorted(node.objects())
            match what:
                case "become":
                    node.become(value)
                case "use":
                    node.use(value)
                case "restart":
                    await node.kill()
                    node.start()
                case "turns":
                    for _ in range(value):
                        await asyncio.sleep(0)
                        node.look()
                case "fail":
                    node.failing[len(node.requests) + 1] = value
                case "delete" if value < len(names):
                    node.cluster.delete(COMPUTE_RESOURCES, names[value])
                    node.others()
                case "edit" if value < len(names):
                    found = node.objects()[names[value]]
                    found["spec"]["devices"] = ["gpu-9", *found["spec"]["devices"][1:]]
                    node.cluster.update(COMPUTE_RESOURCES, found)
                    node.others()
                case "server":
                    match value:
                        case "back up":
                            backup = node.cluster.backup()
                        case "restore":
                            node.cluster.restore(backup)
                            node.others()
                        case "lag":
                            node.client.watching.clear()
                        case "catch up":
                            node.client.watching.set()
                        case _:
                            getattr(node.cluster, value)()
        node.client.watching.set()
        await node.rest()
        assert node.is_settled()
        ids = [id_ for one in node.there().values() for id_ in one.devices]
        assert len(ids) == len(set(ids))
        assert set(node.kinds) <= set(ids) <= set(node.kinds) | node.used

    play(scenario)


@pytest.mark.parametrize("length", [1, 62, 63, 64, 253])
def test_any_node_has_labels_of_its_own(length: int) -> None:
    one, other = ("n" * (length - 1) + end for end in "ab")
    values = [*node_labels(one).values(), *node_labels(other).values()]
    assert len(set(values)) == 2
    assert all(list(label_value_problems(value)) == [] for value in values)
