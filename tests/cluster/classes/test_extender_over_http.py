"""What a scheduler sends to an extender, over real sockets, with an API server beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pinfold.core.classes.bound import bound_key
from pinfold.documents.scheduler_extender import MOST_NODES
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, PODS, RESOURCE_CLASSES
from pinfold.web.bodies import MOST_OBJECT
from pinfold.web.extender.app import LIMITS, MOST_BODY, MOST_BY_NAME
from pinfold.web.limited_connection import Limits
from pinfold.web.replica.figures import Figures
from tests.scenes.class_cluster import GPU, compute_resource, pod, resource_class
from tests.scenes.served_extender import World, served
from tests.scenes.waiting import PATIENCE

NODES = ["n1", "n2", "n3"]


def play(
    scenario: Callable[[World], Awaitable[None]],
    figures: Figures | None = None,
    limits: Limits = LIMITS,
) -> None:
    async def run() -> None:
        async with served(figures or Figures(), limits=limits) as world:
            world.cluster.create(RESOURCE_CLASSES, resource_class("gold", "a"))
            for node, kind, count in (("n1", "a", 1), ("n2", "a", 2), ("n3", "b", 2)):
                one = compute_resource(f"r-{node}", node, kind, count)
                world.cluster.create(COMPUTE_RESOURCES, one)
            await scenario(world)

    asyncio.run(run())


async def _all_known(world: World, asked: Any, nodes: list[str]) -> Any:
    """The answer once the watches have told what there is."""
    async with asyncio.timeout(20 * PATIENCE):
        while (answer := await world.ask("filter", asked)).get("NodeNames") != nodes:  # noqa: ASYNC110 - only an answer tells
            await asyncio.sleep(0.01)
    return answer


def _asked(one: dict[str, Any]) -> dict[str, Any]:
    """As Go writes the struct of ``nodeCacheCapable``."""
    return {"Pod": one, "Nodes": None, "NodeNames": NODES}


def _binding(one: dict[str, Any], node: str) -> dict[str, Any]:
    metadata = one["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def test_a_pod_is_scheduled_by_name() -> None:
    figures = Figures()

    async def scenario(world: World) -> None:
        one = world.cluster.create(PODS, pod("a", namespace="default", gold=1))
        answer = await _all_known(world, _asked(one), ["n1", "n2"])
        none = {"n3": "no devices of class gold"}
        assert answer == {
            "NodeNames": ["n1", "n2"],
            "FailedNodes": none,
            "FailedAndUnresolvableNodes": none,
        }
        scores = await world.ask("prioritize", _asked(one) | {"NodeNames": ["n1", "n2"]})
        assert scores == [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 7}]
        assert await world.ask("bind", _binding(one, "n1")) == {}
        bound = world.cluster.read(PODS, "a", "default")
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"] == {bound_key("app"): f"gold={GPU}:1@r-n1"}
        two = world.cluster.create(PODS, pod("b", namespace="default", gold=1))
        assert await world.ask("bind", _binding(two, "n1")) == {
            "Error": "pinfold: node n1 does not fit any more: too few free devices of class gold"
        }
        answer = await world.ask("filter", _asked(two))
        assert answer["NodeNames"] == ["n2"]
        assert answer["FailedNodes"]["n1"] == "too few free devices of class gold"
        assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"], "not by preemption"

    play(scenario, figures)
    told = figures.text().decode()
    assert 'pinfold_classes_extenders_total{decision="denied",verb="bind"} 1.0' in told
    assert 'pinfold_classes_extenders_total{decision="allowed",verb="bind"} 1.0' in told


def test_whole_nodes_are_given_back_as_they_came() -> None:
    async def scenario(world: World) -> None:
        one = world.cluster.create(PODS, pod("a", namespace="default", gold=1))
        await _all_known(world, _asked(one), ["n1", "n2"])
        nodes = [{"metadata": {"name": name, "x": [name]}, "status": {"é": 1.5}} for name in NODES]
        asked = {"Pod": one, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
        answer = await world.ask("filter", asked)
        assert answer["Nodes"]["items"] == nodes[:2]
        assert "NodeNames" not in answer
        assert len(await world.ask("prioritize", asked)) == 3
        # 4 MiB, as of a thousand nodes.
        many = [*nodes, *({"metadata": {"name": f"x{at}", "y": "y" * 4096}} for at in range(1000))]
        answer = await world.ask("filter", asked | {"Nodes": {"items": many}})
        assert answer["Nodes"]["items"] == nodes[:2]

    play(scenario)


def test_of_many_who_want_the_last_devices_no_more_get_them_than_there_are() -> None:
    async def scenario(world: World) -> None:
        pods = [
            world.cluster.create(PODS, pod(f"p{at}", namespace="default", gold=1))
            for at in range(40)
        ]
        await _all_known(world, _asked(pods[0]), ["n1", "n2"])
        answers = await asyncio.gather(
            *(world.ask("bind", _binding(one, NODES[at % 2])) for at, one in enumerate(pods))
        )
        assert sum(answer == {} for answer in answers) == 3
        on = [one["spec"].get("nodeName") for one in world.cluster.chunk(PODS).objects]
        assert (on.count("n1"), on.count("n2")) == (1, 2)

    play(scenario)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"Pod": 1}', b'{"PodName": {}}', b"[" * 100_000],
)
def test_what_no_scheduler_sends_is_refused(verb: str, body: bytes) -> None:
    async def scenario(world: World) -> None:
        assert await world.send(verb, body) == 400

    play(scenario)


def test_who_does_not_lead_says_so() -> None:
    async def run() -> None:
        async with served(Figures(), leads=False) as world:
            one = world.cluster.create(PODS, pod("a", namespace="default", gold=1))
            for verb, asked in (("filter", _asked(one)), ("bind", _binding(one, "n1"))):
                error = (await world.ask(verb, asked))["Error"]
                assert error.startswith("pinfold: this replica does not lead")
            assert await world.send("prioritize", json.dumps(_asked(one)).encode()) == 503
            assert "nodeName" not in world.cluster.read(PODS, "a", "default")["spec"]

    asyncio.run(run())


def test_what_is_at_no_path_or_has_no_names_is_refused() -> None:
    async def scenario(world: World) -> None:
        assert await world.send("preempt", b"{}") == 404
        asked = b'{"Pod": {}, "Nodes": {"items": [{"metadata": 1}]}}'
        assert await world.send("filter", asked) == 400
        one = pod("a", namespace="default", gold=1)
        await _all_known(world, _asked(one), ["n1", "n2"])
        assert await world.ask("prioritize", {"Pod": one}) == []

    play(scenario)


def _head(size: int) -> bytes:
    return b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async def scenario(world: World) -> None:
        async with world.sending(_head(MOST_BODY + 1)) as answer:
            async with asyncio.timeout(20 * PATIENCE):
                assert (await answer.readuntil(b"\r\n")).split()[1] == b"413"

    play(scenario)


def test_no_question_is_longer_than_a_cluster_makes_it() -> None:
    async def scenario(world: World) -> None:
        one = pod("a", namespace="default", gold=1)
        for verb in ("filter", "prioritize"):
            for asked, status in (
                ({"Pod": one, "NodeNames": ["n"] * MOST_NODES}, 200),
                ({"Pod": one, "NodeNames": ["n"] * (MOST_NODES + 1)}, 400),
                ({"Pod": one, "Nodes": {"items": [{}] * (MOST_NODES + 1)}}, 400),
                ({"Pod": one, "NodeNames": ["n" * MOST_BY_NAME]}, 413),
                ({"Pod": one | {"x": "x" * MOST_OBJECT}, "NodeNames": []}, 413),
            ):
                if status == 200:
                    await _all_known(world, asked, [])
                assert await world.send(verb, json.dumps(asked).encode()) == status

    play(scenario)


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/../b", "A", "a" * 254, "a?b", "é"])
def test_names_that_no_object_has_go_into_no_path(field: str, name: str) -> None:
    async def scenario(world: World) -> None:
        one = world.cluster.create(PODS, pod("a", namespace="default", gold=1))
        asked = json.dumps(_binding(one, "n1") | {field: name}).encode()
        assert await world.send("bind", asked) == (200 if field == "PodUID" and name else 400)
        assert "nodeName" not in world.cluster.read(PODS, "a", "default")["spec"]

    play(scenario)


def test_who_announces_much_and_sends_nothing_holds_up_no_questions_by_name() -> None:
    async def scenario(world: World) -> None:
        one = world.cluster.create(PODS, pod("a", namespace="default", gold=1))
        await _all_known(world, _asked(one), ["n1", "n2"])
        many = [*NODES, *(f"node-{at}.example.com" for at in range(5000))]
        async with world.sending(_head(MOST_BODY)), asyncio.timeout(20 * PATIENCE):
            answer = await world.ask("filter", _asked(one) | {"NodeNames": many})
            assert answer["NodeNames"] == ["n1", "n2"]

    play(scenario, limits=Limits(request=3600, answer=5, idle=90, connections=100))


def test_who_sends_nothing_more_is_answered_when_his_time_is_over() -> None:
    async def scenario(world: World) -> None:
        async with world.sending(_head(100) + b"{") as answer:
            async with asyncio.timeout(20 * PATIENCE):
                assert (await answer.readuntil(b"\r\n")).split()[1] == b"408"

    play(scenario, limits=Limits(request=0.2, answer=5, idle=90, connections=100))
