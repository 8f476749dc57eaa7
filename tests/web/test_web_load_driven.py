"""How a container has its CPUs by load, as an explanation has it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pinfold.agent.loops.controlling import controlled
from pinfold.core.controllers.load_driven import Promote
from pinfold.core.controllers.proposals import Rank
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.documents.explanation import Explanation
from pinfold.node.moves.load_driven import LoadDrivenMoves
from pinfold.render.explain_text import render_explain
from pinfold.render.terminal import Style
from pinfold.views.explain import explain_view
from tests.scenes.load_driven_pods import CONFIG, A, by_load
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s", config=CONFIG, dynamic=DynamicOptions(), observes=True) as server:
        assert server.ask("POST", "/v1/pods", by_load("a", "2")).status == 201
        assert server.ask("POST", "/v1/pods", manifest("db", "1")).status == 201
        wait_until(lambda: phase(server, "a") == "Running")
        yield server


def explained(api: Served, pod: str) -> tuple[Explanation, str]:
    """The explanation, and its text."""
    told = api.ask("GET", f"/v1/explain/default/{pod}").json
    found = msgspec.convert(told, Explanation)
    return found, render_explain(explain_view(found), Style(400))


async def promote(api: Served) -> None:
    manager = api.node.manager
    rebalancing = manager.rebalancing
    moves = LoadDrivenMoves(api.node.books, manager.mover, rebalancing.rooms, rebalancing.budget)
    wish = Promote(
        rank=Rank.LOAD_DRIVEN, why="busy", owners=frozenset({A}), moves=1, count=2, used=1.25
    )
    assert await moves.carry_out(wish) == ""
    if (moving := manager.mover.in_flight) is not None:
        assert (await moving.ended()).done


def decides(api: Served) -> None:
    """From now on the agent says what its controller would do."""
    backend = api.backend
    controlling = controlled(backend.books, backend.rebalancing, backend.observation, CONFIG)
    assert controlling is not None
    about = backend.about

    def told() -> object:
        return msgspec.structs.replace(about(), control=controlling.document(backend.books))

    backend.about = told  # type: ignore[method-assign, assignment] # the agent has more to say


def test_why_it_shares_and_has_its_own_and_what_changes_it(api: Served) -> None:
    _, text = explained(api, "a")
    assert "now         shared pool, 2 CPUs charged and not held, since its start" in text
    assert "it gives no CPUs by load (loadDriven.use" in text
    decides(api)
    found, text = explained(api, "a")
    assert "next: CPUs of its own once it uses 1.40 of its 2 CPUs (promoteUsage 70%)" in text
    api.call(promote(api))
    found, text = explained(api, "a")
    (one,) = found.containers
    assert one.cpus is None, "the decision is that of its admission"
    assert "decided by  shared pool, 2 CPUs charged and not held" in text
    assert one.by_load
    assert one.by_load.since is not None
    assert one.by_load.since == api.node.store.pods["uid-a"].load_driven["c0"].at
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.by_load.since))
    assert (
        f"CPUs {one.by_load.cpus} of its own, since {since}: it used 1.25 of 2 CPUs when its load "
        "asked for it"
    ) in text
    assert "next: the shared pool once it uses less than 0.60 of its 2 CPUs (demoteUsage" in text


def test_of_others_and_of_who_is_gone_nothing_is_said(api: Served) -> None:
    decides(api)
    found, text = explained(api, "db")
    assert not found.containers[0].by_load
    assert "now  " not in text
    assert api.ask("DELETE", "/v1/pods/default/a").status == 204
    found, text = explained(api, "a")
    assert found.admitted
    assert not found.containers[0].by_load
