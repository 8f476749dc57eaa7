"""Hard eviction thresholds, as far as they take resources away from pods.

Source: upstream ``eviction/helpers.go`` (1.34).  Percentages are 32-bit floats there, which shows
in the bytes that they amount to.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.values.quantity import Format, Quantity, QuantityError

MEMORY_AVAILABLE: Final = "memory.available"
NODEFS_AVAILABLE: Final = "nodefs.available"

SIGNALS: Final = (
    MEMORY_AVAILABLE,
    NODEFS_AVAILABLE,
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
    "allocatableMemory.available",
)
"""What a threshold can be about; the first two reduce what is allocatable."""

DEFAULT_EVICTION_HARD: Final[Mapping[str, str]] = MappingProxyType(
    {
        MEMORY_AVAILABLE: "100Mi",
        NODEFS_AVAILABLE: "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }
)
"""The kubelet's thresholds where the configuration has none."""

_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = re.compile(
    r"[-+]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][-+]?[0-9]+", re.ASCII
)
_INFINITE = re.compile(r"[-+]?inf(?:inity)?", re.ASCII | re.IGNORECASE)
_LONGEST: Final = 400
"""Longer numbers are cut in texts, and are refused."""


class EvictionError(ValueError):
    """A threshold with which no kubelet would start; the message is the kubelet's."""


class Threshold(Struct, frozen=True):
    """Pods are evicted when less of the signal than this is left: a quantity or a share."""

    signal: str
    quantity: Quantity | None = None
    percentage: float = 0.0

    def of(self, capacity: int) -> Quantity:
        """The threshold on a capacity (bytes, inodes, processes)."""
        if self.quantity is not None:
            return self.quantity
        product = capacity * self.percentage
        if math.isnan(product):
            # Go's conversion of what is no number; upstream prints this one without a suffix.
            return Quantity(-(2**63))
        return Quantity(int(product), 0, Format.BINARY_SI)


def parse_thresholds(eviction_hard: Mapping[str, str]) -> tuple[Threshold, ...]:
    """Read ``evictionHard``: signal -> quantity or percentage; in the order of the signals.

    ``0%`` and ``100%`` mean "no threshold" and are left out.

    Raises:
        EvictionError: an unknown signal, or a value that is out of range or no number.
    """
    found = (_parse(signal, text) for signal, text in sorted(eviction_hard.items()))
    return tuple(threshold for threshold in found if threshold is not None)


def _parse(signal: str, text: str) -> Threshold | None:
    if signal not in SIGNALS:
        raise EvictionError(f"unsupported eviction signal {signal}")
    if text in ("0%", "100%"):
        return None
    if text.endswith("%"):
        percentage = _as_float32(_parse_float32(text.rstrip("%")) / 100)
        if percentage < 0:
            raise EvictionError(f"eviction percentage threshold {signal} must be >= 0%: {text}")
        if percentage > 1:
            raise EvictionError(f"eviction percentage threshold {signal} must be <= 100%: {text}")
        return Threshold(signal, percentage=percentage)
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        raise EvictionError(str(error)) from None
    if quantity.sign <= 0:
        raise EvictionError(f"eviction threshold {signal} must be positive: {quantity}")
    return Threshold(signal, quantity)


def _parse_float32(text: str) -> float:
    """Read a number as Go's ``strconv.ParseFloat`` with 32 bits."""
    problem = "invalid syntax"
    if len(text) <= _LONGEST:
        try:
            if _DECIMAL.fullmatch(text) or _INFINITE.fullmatch(text) or text.lower() == "nan":
                return _as_float32(float(text))
            if _HEXADECIMAL.fullmatch(text):
                return _as_float32(float.fromhex(text))
        except OverflowError:
            problem = "value out of range"
    raise EvictionError(f'strconv.ParseFloat: parsing "{text[:_LONGEST]}": {problem}')


def _as_float32(number: float) -> float:
    if not math.isinf(number) and abs(number) >= 2.0**128:
        raise OverflowError
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
