"""Kubernetes itself takes what deploy/kubernetes makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.roots import ROOT
from tests.scenes.chart import needs_helm, rendered, switches
from tests.scenes.control_plane import ControlPlane
from tests.scenes.deployed import kustomizations
from tests.scenes.kubectl import kustomized

NEWER = {"matchConditions", "selectableFields", "x-kubernetes-validations"}
"""The fields that servers of today know, and those of 1.20 not yet."""


def check_taken(control: ControlPlane, wanted: Iterable[Mapping[str, Any]]) -> None:
    """See that a server would take all of it, and knows each field."""
    wanted, known = list(wanted), control.kinds()
    for name in {one["metadata"].get("namespace") for one in wanted} - {None}:
        control.kubectl("create", "namespace", name, "--save-config", status=None)
    taken = [one for one in wanted if (one["apiVersion"], one["kind"]) in known]
    assert taken
    given = yaml.safe_dump_all(taken)
    told = control.kubectl("apply", "--dry-run=server", "--validate=false", "-f", "-", given=given)
    assert all(line.endswith("(server dry run)") for line in told.splitlines()), told
    assert len(told.splitlines()) == len(taken)
    # Nor is there any field that nobody knows.
    told = control.kubectl(
        *("apply", "--dry-run=server", "--validate=true", "-f", "-"), given=given, status=None
    )
    unknown = set(re.findall(r'unknown field "(?:[^"]*\.)?([^".]+)"', told))
    assert unknown <= (NEWER if control.version < (1, 31) else set()), told
    assert unknown or "error" not in told.lower()


@pytest.mark.parametrize("folder", kustomizations(), ids=lambda path: str(path.relative_to(ROOT)))
def test_it_is_taken(control: ControlPlane, folder: Path) -> None:
    check_taken(control, kustomized(folder).values())


@needs_helm
@pytest.mark.parametrize("switch", [None, *switches(), "all"])
def test_the_chart_is_taken(control: ControlPlane, tmp_path: Path, switch: str | None) -> None:
    on = switches() if switch == "all" else [switch] if switch else []
    values = [
        f'{name.removesuffix(".enabled")}={{"enabled":true}}'
        if name.endswith(".enabled")
        else f"{name}=true"
        for name in on
    ]
    found = rendered(tmp_path, *values).values()
    check_taken(control, found)
    names = {
        container["name"]
        for one in found
        if one["kind"] == "DaemonSet"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert names == ({"agent", "page"} if "page.enabled" in on else {"agent"})


def test_the_secret_of_the_page_is_made_as_the_page_says(control: ControlPlane) -> None:
    """Where the DaemonSet looks for it, and of the type that it mounts."""
    page = (ROOT / "docs" / "how-to" / "watch-a-node.md").read_text()
    (command,) = re.findall(r"kubectl -n pinfold (create secret generic [^\n]*)", page)
    words = re.sub(r'"?\$\(.*?\)"?', "x" * 44, command).split()
    control.kubectl("create", "namespace", "pinfold", status=None)
    made = yaml.safe_load(
        control.kubectl("-n", "pinfold", *words, "--dry-run=server", "-o", "yaml")
    )
    mounted = [
        volume["secret"]
        for one in kustomized(ROOT / "deploy" / "kubernetes" / "overlays" / "page").values()
        if one["kind"] == "DaemonSet"
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert [one["secretName"] for one in mounted] == [made["metadata"]["name"]]
    assert [item["key"] for one in mounted for item in one["items"]] == list(made["data"])
