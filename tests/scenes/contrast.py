"""Contrast of colours, as WCAG 2.2 measures it."""

from __future__ import annotations

AA = 4.5
"""The contrast that WCAG 2.2 asks for of text, 1.4.3."""


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours."""
    dark, light = sorted((_luminance(one.lstrip("#")), _luminance(other.lstrip("#"))))
    return (light + 0.05) / (dark + 0.05)
