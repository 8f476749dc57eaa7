"""What the page shows of what has been: the history, and the node as it was."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.documents.api import HistoryEntry
from pinfold.page.serving.past import FORMS, shown
from tests.scenes.served_page import ServedPage, served_page
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, served

SECRET = "s3cr3t"  # noqa: S105 - stands in for one


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("agent") / "a.sock", observes=True) as found:
        yield found


@pytest.fixture(scope="module")
def page(node: Served) -> Iterator[ServedPage]:
    with served_page(node.path) as found:
        yield found


def secretive(name: str, cpus: str) -> dict[str, Any]:
    """A manifest that has secrets wherever a manifest can have some."""
    amount = {"cpu": cpus, "memory": "1Gi"}
    container = {
        "name": "c0",
        "image": "image",
        "command": ["sh", "-c", f"{SECRET}-command"],
        "args": [f"{SECRET}-args"],
        "workingDir": f"/{SECRET}-dir",
        "env": [{"name": f"{SECRET.upper()}_NAME", "value": f"{SECRET}-env"}],
        "resources": {"requests": amount, "limits": amount},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": {"example.org/a": f"{SECRET}-annotation"},
            "labels": {"example.org/l": f"{SECRET}-label"},
        },
        "spec": {"containers": [container]},
    }


def test_no_answer_holds_what_a_manifest_keeps_secret(node: Served, page: ServedPage) -> None:
    assert node.ask("POST", "/v1/pods", secretive("web", "2")).json["phase"] != "Rejected"
    assert node.ask("POST", "/v1/pods", secretive("big", "100")).json["phase"] == "Rejected"
    before = time.time()
    node.ask("DELETE", "/v1/pods/default/web?grace=0")
    targets = (
        *("/v1/scene", f"/v1/scene?at={before}", "/v1/scene?at=0", "/v1/history"),
        *("/v1/history?pod=default/web", "/v1/explain/default/web", "/v1/explain/default/big"),
        *("/v1/explain/default/nobody", "/v1/history?kind=admitted&limit=3"),
    )
    answers = [page.ask("GET", one) for one in targets]
    with page.events() as events:
        told = str(next(events))
    assert "big" in told
    assert SECRET not in told.lower()
    for answer in answers:
        assert answer.status in (200, 404), (answer, page.text)
        assert SECRET not in answer.text.lower()
        assert SECRET not in str(answer.headers).lower()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just(SECRET),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([SECRET, "env", "command", "args", "spec"]), inner)
    ),
    max_leaves=6,
)

WHOLE: dict[str, dict[str, Any]] = {
    "configured": {"start": "as another kubelet"},
    "taken-back": {"cpus": "1", "uncapped": False, "why": "w"},
    "drifted": {
        "container": None,
        "expected": "1",
        "found": "2",
        "repaired": True,
        "problem": "",
    },
}
"""Documents that are whole; those of the other kinds are not, and nothing is shown of them."""


@given(
    st.sampled_from([*FORMS, "another-kind"]),
    st.dictionaries(
        st.sampled_from(["env", "command", "spec", "manifest", "annotations", SECRET]), json_values
    ),
)
def test_a_document_has_the_fields_of_its_form_and_no_other(
    kind: str, more: dict[str, Any]
) -> None:
    """Whatever a later agent adds to an entry, the page does not pass it on."""
    document = {**WHOLE.get(kind, {}), **more}
    entry = HistoryEntry(number=1, at=2.0, kind=kind, pod_uid="u", pod="a/b", document=document)
    found = shown(entry)
    assert SECRET not in json.dumps(found.document)
    assert found.document == WHOLE.get(kind)


def test_what_is_drawn_of_an_entry_changes_nothing_beside_it() -> None:
    """Characters that turn the direction of a text, or are for terminals."""
    entry = HistoryEntry(
        number=1, at=1.0, kind="rejec\u202eted", pod_uid="u", pod="a/\x1b[31mb", document=None
    )
    told = shown(entry)
    drawn = f"{told.kind}{told.pod}{told.words}"
    assert drawn.isprintable()
    assert "\u202e" not in drawn


def test_the_past_is_drawn_as_it_was(tmp_path: Path) -> None:
    with served(tmp_path / "a.sock") as node, served_page(node.path) as page:
        assert page.get("/v1/scene")["owners"] == []
        node.ask("POST", "/v1/pods", secretive("web", "2"))
        wait_until(lambda: page.get("/v1/scene")["owners"])
        entry = page.get("/v1/history?kind=admitted")["entries"][0]
        then = page.get(f"/v1/scene?at={entry['at']}")
        assert [one["label"] for one in then["owners"]] == ["default/web c0"]
        assert (then["live"], then["at"]) == (False, entry["at"])
        assert page.get(f"/v1/scene?at={entry['at'] - 0.5}")["owners"] == []
        assert entry["document"]["containers"][0]["cpus"] == then["owners"][0]["cpus"]


def test_a_pod_is_explained_in_words(node: Served, page: ServedPage) -> None:
    node.ask("POST", "/v1/pods", secretive("told", "1"))
    told = page.get("/v1/explain/default/told")
    assert told["lines"][0].startswith("Container c0")
    assert page.ask("GET", "/v1/explain/default/nobody").status == 404
    assert page.ask("GET", "/v1/explain/default/..%2f..%2fstatus").status == 404
