"""Limits that somebody else writes, beside a running agent: needs root and a cgroup tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    an_agent,
    manifest,
)

node = pytest.fixture(an_agent)


def test_limits_that_somebody_else_writes_are_told_and_repaired(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    node.pids("web")
    found = [
        file
        for name in ("cpu.shares", "cpu.weight")
        for file in Path("/sys/fs/cgroup").rglob(f"{node.name}/**/pod-*/main/{name}")
    ]
    (file,) = found
    before = file.read_text().strip()
    assert "limit-differs" not in _audited(node)
    file.write_text("77")
    finding = _audited(node)["limit-differs"]
    assert finding["what"] == (
        f"default/web main: written {file.name} {before}, the kernel has {file.name} 77"
    )
    assert finding["fix"] == [f"echo {before} > {file}"]
    (drift,) = node.client.post("/v1/reconcile")["drifts"]
    assert (drift["expected"], drift["found"]) == (f"{file} {before}", "77")
    assert drift["repaired"]
    assert file.read_text().strip() == before
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert "limit-differs" not in _audited(node)


def _audited(node: AgentProcess) -> dict[str, Any]:
    findings = json.loads(node.run("audit", "-o", "json").stdout)["findings"]
    return {finding["slug"]: finding for finding in findings}
