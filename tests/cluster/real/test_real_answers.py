"""Kubernetes itself asks and answers as it was recorded to, whichever version it is."""

from __future__ import annotations

import json

from tests.roots import ROOT
from tests.scenes.admission_recorder import form, recorded
from tests.scenes.api_exchanges import NAMESPACE, alike, exchanges
from tests.scenes.control_plane import ControlPlane

FOLDER = ROOT / "tests" / "data" / "api_server"


def test_it_answers_as_it_was_recorded(control: ControlPlane) -> None:
    control.make_namespace(NAMESPACE)
    found = exchanges(control.ask, control.forget)
    known = json.loads((FOLDER / "answers-1.20.json").read_text())
    control.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    for name, answer in known.items():
        assert alike(name, found[name]) == alike(name, answer), name


def test_it_asks_as_it_was_recorded(control: ControlPlane) -> None:
    found = {name: form(one) for name, one in recorded(control).items()}
    lines = (FOLDER / "reviews-1.20.jsonl").read_text().splitlines()
    known = {one["name"]: form(one) for one in map(json.loads, lines)}
    for name, asked in known.items():
        assert found[name] == asked, name
