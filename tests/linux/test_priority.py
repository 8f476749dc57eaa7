"""The nice value of this process, for a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pinfold.linux.priority import at_least, nice_value

SCRIPT = """
import os, sys
from pinfold.linux.priority import at_least, nice_value
os.setpriority(os.PRIO_PROCESS, 0, 5)
told = []
for nice in (2, 7):
    if nice == 2 and sys.argv[1] == "drop":
        os.setgroups([])
        os.setuid(65534)
    with at_least(nice, told.append):
        print(nice_value())
    print(nice_value())
print(told)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a lower nice value takes root")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("keep", ["2", "5", "5", "5", "[]"]),
        (
            "drop",
            [
                *("5", "5", "5", "5"),
                '["the agent\'s nice value stays 5, and is not 2: Permission denied"]',
            ],
        ),
    ],
)
def test_it_is_had_for_the_time_being_or_told_why_not(how: str, said: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == said


def test_one_that_is_lower_already_stays() -> None:
    before, told = nice_value(), list[str]()
    with at_least(19, told.append):
        assert nice_value() == before
    assert told == []
