"""Sets of logical CPUs.

A :class:`CPUSet` is an immutable value: an ``int`` bitmask inside, the kernel's list format
(``0-3,8``) outside.  Everything that decides works on the mask; everything that people read
or that is written to a file is the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import index
from typing import Final, Self

from pinfold.core.values.errors import PinfoldError, wrong_type

MAX_CPU: Final = 65535
"""Highest CPU id that is accepted, so that ``0-9999999999`` cannot eat the memory."""

_ABOVE: Final = 1 << (MAX_CPU + 1)

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9})(?:/(\d{1,9}))?)?)?", re.ASCII)
_HEX_WORD = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16384})", re.ASCII)


class CPUSetError(PinfoldError, ValueError):
    """A text or numbers that are no CPU set; the message names the part that is wrong."""


class CPUSet:
    """An immutable, hashable set of CPU ids, from 0 to ``MAX_CPU``.

    ``str()`` gives the kernel's list format (cpuset(7), "List format"): sorted, ranges joined,
    ``""`` for the empty set.  Iteration ascends.  The operators are those of ``frozenset``, and
    take a CPUSet on both sides: anything else is a ``TypeError``.

    Args:
        cpus: the ids, any integers.  A text is read by :meth:`parse`, a bitmask by
            :meth:`from_mask`.

    Raises:
        CPUSetError: an id that is negative or above ``MAX_CPU``.
        TypeError: a text, one number, or anything among them that is no integer.

    >>> CPUSet.parse("0-3,8") | CPUSet([9])
    CPUSet('0-3,8-9')
    """

    __slots__ = ("_mask",)
    _mask: int

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        mask = 0
        if isinstance(cpus, (str, bytes, bytearray)):
            raise wrong_type("cpus", "CPU ids, which CPUSet.parse reads of a text", cpus)
        try:
            for cpu in cpus:
                if type(cpu) is not int:
                    mask |= 1 << _id_of(cpu)
                elif 0 <= cpu <= MAX_CPU:
                    mask |= 1 << cpu
                else:
                    raise _no_id(cpu)
        except TypeError:
            if isinstance(cpus, Iterable):
                raise
            raise wrong_type("cpus", "several CPU ids, such as [0, 1]", cpus) from None
        object.__setattr__(self, "_mask", mask)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"CPUSet is immutable: cannot set {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return (CPUSet.from_mask, (self._mask,))

    @classmethod
    def from_mask(cls, mask: int) -> Self:
        """The set whose bit ``n`` is set for every CPU ``n``.

        Raises:
            CPUSetError: a negative mask, or one of CPUs above ``MAX_CPU``.
            TypeError: no integer.

        >>> CPUSet.from_mask(0b1011)
        CPUSet('0-1,3')
        """
        if type(mask) is not int:
            mask = _integer(mask, "mask")
        if mask < 0:
            raise CPUSetError(f"mask {mask} is negative")
        if mask >= _ABOVE:
            raise CPUSetError(f"the mask has CPU {mask.bit_length() - 1}, above {MAX_CPU}")
        new = cls.__new__(cls)
        object.__setattr__(new, "_mask", mask)
        return new

    @classmethod
    def union_of(cls, sets: Iterable[CPUSet]) -> Self:
        """All CPUs of many sets, which is quicker than one union after the other.

        Raises:
            TypeError: anything among them that is no CPUSet.
        """
        mask = 0
        for cpus in sets:
            if not isinstance(cpus, CPUSet):
                raise wrong_type("each of the sets", "a CPUSet", cpus)
            mask |= cpus.mask
        return cls.from_mask(mask)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the kernel's list format: ``0-3,8``, strides ``0-30:2``, groups ``0-31:2/4``.

        In ``a-b:used/group`` the first ``used`` CPUs of every ``group`` are taken; ``a-b:step``
        takes every ``step``-th, as ``taskset`` and cpusets written by hand have it.

        Raises:
            CPUSetError: an empty item, a descending range, a zero stride, an id above
                ``MAX_CPU``, or anything that is no number.
            TypeError: no text.

        >>> len(CPUSet.parse("0-30:2"))
        16
        """
        if not isinstance(text, str):
            raise wrong_type("text", "a list of CPUs such as '0-3,8'", text)
        stripped = text.strip()
        if not stripped:
            return cls.from_mask(0)
        mask = 0
        for raw in stripped.split(","):
            item = raw.strip()
            match = _RANGE.fullmatch(item)
            if match is None:
                raise CPUSetError(f"{_shorten(item)!r} in {_shorten(text)!r} is no CPU id or range")
            mask |= _range_mask(item, match)
        return cls.from_mask(mask)

    @classmethod
    def parse_hex(cls, text: str) -> Self:
        """Read the kernel's mask format (cpuset(7), "Mask format"): ``ff``, ``1,00000000``.

        Words after the first stand for 32 bits each, the highest first; a leading ``0x`` on any
        word (hwloc's form) is accepted.  An empty text is the empty set.

        Raises:
            CPUSetError: a word that is no hexadecimal number or has more than 32 bits.
            TypeError: no text.
        """
        if not isinstance(text, str):
            raise wrong_type("text", "a mask such as 'ff' or '1,00000000'", text)
        stripped = text.strip()
        mask = 0
        if not stripped:
            return cls.from_mask(0)
        words = stripped.split(",")
        for word in words:
            match = _HEX_WORD.fullmatch(word.strip())
            if match is None or (len(words) > 1 and len(match[1]) > 8):
                # hwloc writes an empty word for 32 zero bits inside a long mask.
                if word.strip() == "" and len(words) > 1:
                    mask <<= 32
                    continue
                raise CPUSetError(
                    f"{_shorten(word)!r} in {_shorten(text)!r} is no hexadecimal mask word"
                )
            mask = (mask << 32) | int(match[1], 16)
        if mask.bit_length() > MAX_CPU + 1:
            raise CPUSetError(f"mask {_shorten(text)!r} has CPUs above {MAX_CPU}")
        return cls.from_mask(mask)

    @property
    def mask(self) -> int:
        """The set as a bitmask."""
        return self._mask

    def hex(self) -> str:
        """The kernel's mask format: words of 32 bits, ``"0"`` for the empty set.

        >>> CPUSet([0, 33]).hex()
        '2,00000001'
        """
        digits = f"{self._mask:x}"
        head = len(digits) % 8 or 8
        return ",".join([digits[:head], *(digits[i : i + 8] for i in range(head, len(digits), 8))])

    def __str__(self) -> str:
        return ",".join(
            str(low) if low == high else f"{low}-{high}" for low, high in mask_ranges(self._mask)
        )

    def __repr__(self) -> str:
        return f"CPUSet({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        return iter_bits(self._mask)

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and bool(self._mask >> cpu & 1)

    def __hash__(self) -> int:
        return hash((CPUSet, self._mask))

    def __eq__(self, other: object) -> bool:
        return self._mask == other._mask if isinstance(other, CPUSet) else NotImplemented

    def __or__(self, other: CPUSet) -> CPUSet:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return CPUSet.from_mask(self._mask | other._mask)

    def __and__(self, other: CPUSet) -> CPUSet:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return CPUSet.from_mask(self._mask & other._mask)

    def __sub__(self, other: CPUSet) -> CPUSet:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return CPUSet.from_mask(self._mask & ~other._mask)

    def __xor__(self, other: CPUSet) -> CPUSet:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return CPUSet.from_mask(self._mask ^ other._mask)

    def __le__(self, other: CPUSet) -> bool:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return self._mask & ~other._mask == 0

    def __ge__(self, other: CPUSet) -> bool:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return other._mask & ~self._mask == 0

    def __lt__(self, other: CPUSet) -> bool:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return self._mask != other._mask and self._mask & ~other._mask == 0

    def __gt__(self, other: CPUSet) -> bool:
        if not isinstance(other, CPUSet):
            return NotImplemented
        return self._mask != other._mask and other._mask & ~self._mask == 0

    def isdisjoint(self, other: CPUSet) -> bool:
        """Whether no CPU is in both sets.

        Raises:
            TypeError: no CPUSet.
        """
        if not isinstance(other, CPUSet):
            raise wrong_type("other", "a CPUSet", other)
        return self._mask & other._mask == 0


NO_CPUS: Final = CPUSet()


def iter_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits of ``mask``, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_ranges(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of set bits of ``mask`` as inclusive ``(low, high)``, ascending."""
    while mask:
        low = (mask & -mask).bit_length() - 1
        shifted = mask >> low
        # Adding 1 to a run of ones carries into the first zero above it.
        run = (~shifted & (shifted + 1)).bit_length() - 1
        yield low, low + run - 1
        mask = (shifted >> run) << (low + run)


def _range_mask(item: str, match: re.Match[str]) -> int:
    low = int(match[1])
    high = int(match[2]) if match[2] else low
    if high < low:
        raise CPUSetError(f"range {item!r} runs downwards")
    if high > MAX_CPU:
        raise CPUSetError(f"{item!r}: CPU ids above {MAX_CPU} are not accepted")
    run = (1 << (high - low + 1)) - 1
    if match[3] is None:
        return run << low
    used, group = (int(match[3]), int(match[4])) if match[4] else (1, int(match[3]))
    if used == 0 or group == 0 or used > group:
        raise CPUSetError(f"stride of {item!r} must be at least 1, and no more used than grouped")
    mask = sum(((1 << used) - 1) << start for start in range(low, high + 1, group))
    return mask & (run << low)


def _id_of(cpu: object) -> int:
    number = _integer(cpu, "each CPU id")
    if not 0 <= number <= MAX_CPU:
        raise _no_id(number)
    return number


def _no_id(cpu: int) -> CPUSetError:
    if cpu < 0:
        return CPUSetError(f"CPU id {cpu} is negative")
    return CPUSetError(f"CPU id {cpu}: CPU ids above {MAX_CPU} are not accepted")


def _integer(value: object, name: str) -> int:
    """An integer that is no plain ``int``: numpy's are as good, and True is no CPU."""
    try:
        if not isinstance(value, bool):
            return index(value)  # type: ignore[arg-type] # this is what says whether it is one
    except TypeError:
        pass
    raise wrong_type(name, "a whole number", value)


def _shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
