"""What annotations of a pod may say: each reads a text, and raises ValueError with what it must be.

Their names and meanings are the table of :mod:`pinfold.core.pod.annotations`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pinfold.core.cache.options import CLASS_NAME, NO_CLASS
from pinfold.core.values.cpuset import CPUSet, CPUSetError

MAX_DEVICES: Final = 64
MAX_GRACE_PERIOD: Final = 10
"""Seconds; the most that KEP-5554 allows."""

ALL_CPUS: Final = 100_000
"""As many as there are."""

_PERCENT: Final = re.compile(r"[0-9]{1,3}%", re.ASCII)
_WHOLE: Final = 100
_DEVICE: Final = re.compile(r"[\w.\-@:!/]{1,128}", re.ASCII)


def device_names(text: str) -> tuple[str, ...]:
    """The names in a list such as ``eth0,0000:3b:00.0``, each once.

    Raises:
        ValueError: an empty or malformed name, or too many.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > MAX_DEVICES:
        raise ValueError(f"{len(names)} devices are more than {MAX_DEVICES}")
    for name in names:
        if _DEVICE.fullmatch(name) is None:
            raise ValueError(
                f"{name[:40]!r} is no device name; give interfaces, disks or PCI addresses, "
                "separated by commas: eth0,0000:3b:00.0"
            )
    return names


def one_of(*words: str) -> Callable[[str], str]:
    """Reads one of these words."""

    def read(text: str) -> str:
        if text not in words:
            *others, last = words
            listed = f"{', '.join(others)} or {last}" if others else last
            raise ValueError(f"must be {listed}, not {text[:40]!r}")
        return text

    return read


def class_name(text: str) -> str:
    """The name of a class, or ``none``."""
    if re.fullmatch(CLASS_NAME, text) is None:
        raise ValueError(f"must be the name of a class, or {NO_CLASS}, not {text[:40]!r}")
    return text


def boolean(text: str) -> bool:
    """``true`` or ``false``."""
    return one_of("true", "false")(text) == "true"


def grace_period(text: str) -> int:
    """Seconds, from 0."""
    if not (text.isascii() and text.isdigit() and len(text) < 3 and int(text) <= MAX_GRACE_PERIOD):
        raise ValueError(
            f"must be a whole number of seconds from 0 to {MAX_GRACE_PERIOD}, not {text[:40]!r}"
        )
    return int(text)


def percent(text: str) -> int:
    """A part of something, ``0%`` to ``100%``."""
    if not (_PERCENT.fullmatch(text) and int(text[:-1]) <= _WHOLE):
        raise ValueError(f"must be 0% to {_WHOLE}%, not {text[:40]!r}")
    return int(text[:-1])


def cpu_count(text: str) -> int:
    """A number of CPUs; ``true`` is all, ``false`` is 0."""
    if text in {"true", "false"}:
        return ALL_CPUS if text == "true" else 0
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 6 and int(text)):
        raise ValueError(
            f"must be true, false or a whole number of CPUs such as 2, not {text[:40]!r}"
        )
    return int(text)


def cpu_list(text: str) -> CPUSet:
    """CPUs as the kernel lists them."""
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        raise ValueError(f"must be a list of CPUs such as 3,5 or 4-7: {error}") from None
