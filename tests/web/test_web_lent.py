"""CPUs that are lent, as the status, the picture and an audit have them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from pinfold.audit.told import AgentSays
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.control import Control, Decided
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.node.settings import NodeSettings
from pinfold.render.terminal import Style
from pinfold.render.text import render_plan
from pinfold.views.status import Hardware, status_view
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, container, phase, served


def look(api: Served) -> tuple[Status, str]:
    """The status, and its picture."""
    status = msgspec.convert(api.ask("GET", "/v1/status").json, Status)
    node = msgspec.convert(api.ask("GET", "/v1/node").json, Node)
    view = status_view(status, Hardware.told(api.ask("GET", "/v1/machine").json), node)
    return status, render_plan(view, Style(100))


def test_what_is_lent_is_told_and_counts_as_its_owners(tmp_path: Path) -> None:
    settings = NodeSettings(backoff=0.01, idle_side=True)
    with served(tmp_path / "s", settings=settings) as api:
        for pod in (manifest("db", "2"), manifest("web", "")):
            assert api.ask("POST", "/v1/pods", pod).status == 201
        wait_until(lambda: phase(api, "web") == "Running")
        before, picture = look(api)
        assert "lent" not in container(api, "db")
        assert "lent" not in picture
        api.call(api.backend.books.lend(CPUSet([3])))
        assert container(api, "db")["cpus"] == "2-3"
        assert container(api, "db")["lent"] == "3"
        after, picture = look(api)
        assert (after.allocatable, after.shared, after.pool) == (
            before.allocatable,
            before.shared,
            before.pool,
        ), "what is lent is not free"
        assert "CPU 3 is lent" in picture
        assert "~  exclusive and lent 1" in picture
        assert "3~" in picture
        told = AgentSays.of_status(after).containers
        assert {one.pod: str(one.lent) for one in told} == {"default/db": "3", "default/web": ""}


def test_the_last_decisions_are_shown(tmp_path: Path) -> None:
    decided = [
        Decided(rank="suppression", why=f"reason {number}", at=1.0, problem="no" * (number == 4))
        for number in range(5)
    ]
    control = Control(controllers=["suppression"], waiting=(), decided=decided, moves_left=0)
    with served(tmp_path / "s") as api:
        status = msgspec.convert(api.ask("GET", "/v1/status").json, Status)
        node = msgspec.convert(api.ask("GET", "/v1/node").json, Node)
        status = replace(status, agent=replace(status.agent, control=control))
        view = status_view(status, Hardware.told(api.ask("GET", "/v1/machine").json), node)
    shown = [note.partition(": ")[2] for note in view.notes if note.startswith("decided at ")]
    assert shown == [
        "suppression: reason 2",
        "suppression: reason 3",
        "suppression: reason 4; failed: no",
    ]
