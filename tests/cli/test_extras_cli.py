"""A library that is not installed is one line; a broken module of our own is no matter of that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.cli.output import InputError, needs_extra
from pinfold.formats.extras import install_command


def test_a_library_that_is_missing_is_named_with_what_installs_it() -> None:
    with pytest.raises(InputError) as told, needs_extra("a replica", "agent,cluster"):
        __import__("no_such_library.of_anybody")
    assert told.value.message == (
        "a replica needs no_such_library; install pinfold with its extras: "
        f"{install_command('agent,cluster')}"
    )


def test_a_module_of_our_own_that_is_missing_is_told_as_it_is() -> None:
    name = "pinfold.cli.no_such_module"
    with pytest.raises(ModuleNotFoundError, match=name), needs_extra("it", "agent"):
        __import__(name)


def test_the_agent_names_its_own(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['structlog'] = None\nfrom pinfold.__main__ import start\nstart()"
    )
    places = ("--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "s"))
    done = subprocess.run(
        [sys.executable, "-c", program, "agent", *places],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    told = f"the agent needs structlog; install pinfold with its extra: {install_command('agent')}"
    assert done.stderr.splitlines()[-1] == f"Error: {told}"
