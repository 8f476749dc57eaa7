"""Numbers of seconds on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pinfold.cli import main


@pytest.mark.parametrize("value", ["nan", "inf", "1e12", "-1", "0", "x"])
def test_what_is_no_time_to_wait_is_refused(value: str) -> None:
    command = ["resize", "pod/m", "--cpus", "2", "--socket", "/nowhere", "--timeout", value]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "--timeout" in result.output


@pytest.mark.parametrize("value", ["5", "0.5", "5s", "1m30s"])
def test_what_is_one(value: str) -> None:
    command = ["resize", "pod/m", "--cpus", "2", "--socket", "/nowhere", "--timeout", value]
    assert "no agent listens" in CliRunner().invoke(main, command).output
