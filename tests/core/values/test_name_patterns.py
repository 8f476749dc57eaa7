"""What a pattern stands for."""

from __future__ import annotations

import pytest

from pinfold.core.values.name_patterns import is_pattern, named

NAMES = ("gpu-1", "gpu-2", "GPU-1", "big")


@pytest.mark.parametrize(
    ("text", "stands_for_several", "found"),
    [
        ("gpu-*", True, ["gpu-1", "gpu-2"]),
        ("?pu-1", True, ["gpu-1"]),
        ("[bx]ig", True, ["big"]),
        ("*", True, list(NAMES)),
        ("big", False, ["big"]),
        ("small", False, []),
    ],
)
def test_a_pattern_is_as_a_shells(text: str, stands_for_several: bool, found: list[str]) -> None:
    assert is_pattern(text) is stands_for_several
    assert named(text, NAMES) == found
