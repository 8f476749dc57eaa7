"""Kubernetes itself takes what deploy/kubernetes makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.roots import ROOT
from tests.scenes.control_plane import ControlPlane
from tests.scenes.deployed import kustomizations
from tests.scenes.kubectl import kustomized

NEWER = {"matchConditions", "selectableFields", "x-kubernetes-validations"}
"""The fields that servers of today know, and those of 1.20 not yet."""


@pytest.mark.parametrize("folder", kustomizations(), ids=lambda path: str(path.relative_to(ROOT)))
def test_it_is_taken(control: ControlPlane, folder: Path) -> None:
    wanted, known = kustomized(folder), control.kinds()
    for name in {one["metadata"].get("namespace") for one in wanted.values()} - {None}:
        control.kubectl("create", "namespace", name, "--save-config", status=None)
    taken = [one for one in wanted.values() if (one["apiVersion"], one["kind"]) in known]
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
