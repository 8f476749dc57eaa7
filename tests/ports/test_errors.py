"""What an error of the outside world says."""

from __future__ import annotations

import pytest

from pinfold.ports.errors import PortError


@pytest.mark.parametrize(
    ("remedy", "told"),
    [
        ("", "no agent listens"),
        ("start one", "no agent listens (start one)"),
        ("start one (or two)", "no agent listens; start one (or two)"),
    ],
)
def test_what_would_help_is_told_with_no_parentheses_within_others(remedy: str, told: str) -> None:
    error = PortError("no agent listens", remedy)
    assert (str(error), error.remedy) == (told, remedy)
