"""What a command makes of the answers of an agent that is older or newer than it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.cli.client import Client, RefusedError
from pinfold.documents.status import Status
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock") as server:
        server.ask("POST", "/v1/pods", manifest("db", "2"))
        yield server


def test_what_a_newer_agent_adds_is_passed_over(api: Served) -> None:
    client = Client(str(api.path))
    told = client.get("/v1/status")
    told["weather"] = "fine"
    told["pods"][0] |= {"colour": "red", "phase": "Dreaming"}
    status = client.understood(told, Status)
    assert status.pods[0].phase == "Dreaming"
    assert status.pods[0].name == "db"


def test_what_an_older_agent_did_not_tell_has_a_value(api: Served) -> None:
    client = Client(str(api.path))
    told = client.get("/v1/status")
    del told["unhealthy_in_use"]
    for field in ("offline", "place", "ran_shared_seconds"):
        del told["pods"][0]["containers"][0][field]
    (container,) = client.understood(told, Status).pods[0].containers
    assert (container.offline, container.place, container.ran_shared_seconds) == ("", "own", None)


def test_a_field_that_is_missing_is_one_error_that_names_the_version(api: Served) -> None:
    client = Client(str(api.path))
    told = client.get("/v1/status")
    del told["pods"][0]["phase"]
    with pytest.raises(RefusedError) as caught:
        client.understood(told, Status)
    assert caught.value.message == (
        "this is no Status that this program understands: Object missing required field `phase` - "
        "at `$.pods[0]`; the agent is pinfold 0: ask it with a program of that version"
    )


def test_a_document_of_another_version_is_refused(api: Served) -> None:
    client = Client(str(api.path))
    told = client.get("/v1/status") | {"version": 2}
    with pytest.raises(RefusedError, match=r"Invalid value 2 - at `\$\.version`; the agent is"):
        client.understood(told, Status)


def test_what_is_wrong_and_what_helps_are_apart(api: Served) -> None:
    client = Client(str(api.path))
    with pytest.raises(RefusedError) as caught:
        client.delete("/v1/pods/default/none")
    error = caught.value
    assert error.status == 404
    assert error.remedy == "pinfold status shows the pods"
    assert error.message == f"{error.problem} ({error.remedy})"
