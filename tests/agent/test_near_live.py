"""What an agent says of a wish to be near a device that it cannot meet."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)


def test_a_device_that_is_not_there_is_said(tmp_path: Path) -> None:
    skip_unless_an_agent_can_run()
    node = AgentProcess(tmp_path)
    pod = manifest("feed", ("main", IDLE, ""))
    pod["metadata"]["annotations"] = {"near.pinfold.dev/pod": "no-such-card"}
    file = tmp_path / "feed.json"
    file.write_text(json.dumps(pod))
    try:
        node.start()
        applied = node.run("apply", str(file))
    finally:
        node.clean_up()
    assert applied.returncode == 0
    assert "Warning: pod/feed: not kept near: " in applied.stderr
    assert "no-such-card" in applied.stderr
