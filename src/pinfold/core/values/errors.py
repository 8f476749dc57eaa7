"""What the errors of public functions have in common, and how a wrong type is told."""

from __future__ import annotations

_MOST_SHOWN = 60


class PinfoldError(Exception):
    """Input that a public function cannot use, or that a kubelet would not; the message says why.

    Every error that a function of ``pinfold`` documents is one, and most are a ``ValueError``
    too.  As everywhere in Python a value of a wrong type is a ``TypeError``, and a number that a
    constructor cannot use a plain ``ValueError``.
    """


def wrong_type(name: str, wanted: str, value: object) -> TypeError:
    """The error about an argument of a wrong type.

    >>> wrong_type("cpus", "a number of CPUs", "4")
    TypeError("cpus must be a number of CPUs, not '4'")
    """
    shown = repr(value)
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[: _MOST_SHOWN - 3]}..."
    return TypeError(f"{name} must be {wanted}, not {shown}")


def is_number(value: object, *, whole: bool = False) -> bool:
    """Whether a value is a number; True and False are none, though Python counts with them."""
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
