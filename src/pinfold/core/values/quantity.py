"""Resource quantities, exact: ``500m``, ``2``, ``1Gi``, ``3e6``.

Source: upstream ``apimachinery/pkg/api/resource`` (``Quantity``).  A quantity is an integer times
a power of ten.  Upstream holds small numbers in 64 bits and others as big decimals; the two
differ in what they round and cap, so which one it would be is part of the value here.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final

from pinfold.core.values.errors import PinfoldError

NANO: Final = -9
_MAX: Final = 2**63 - 1
_MAX_TEXT: Final = 4096
_MAX_DIGITS_FAST: Final = 18
_HUGE_EXPONENT: Final = 300
"""Numbers of more digits than this are refused: no resource comes near it, and a float no further.
Upstream takes any number, and may work on it for ever."""

_FORMAT_WRONG: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)
_SUFFIX_WRONG: Final = "unable to parse quantity's suffix"
_TOO_LARGE: Final = f"quantity is larger than 10^{_HUGE_EXPONENT}"
_PARTS = re.compile(r"([+-]?)(0*)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,18})", re.ASCII)

_DECIMAL: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES: Final = {power: name for name, power in _DECIMAL.items()}
_BINARY_NAMES: Final = {0: "", **{power: name for name, power in _BINARY.items()}}


class QuantityError(PinfoldError, ValueError):
    """A text that is no quantity; the message is the kubelet's."""


class Format(Enum):
    """How a quantity is written (upstream ``resource.Format``)."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"
    UNSET = ""
    """Of a JSON ``null``; a sum has the other one's."""


class Quantity:
    """An exact number of some resource; immutable, hashable, ordered by value.

    ``str()`` keeps the text that was read where upstream keeps it, and is canonical otherwise.
    Fractions below one billionth are rounded up on reading.

    >>> Quantity.parse("1500m") + Quantity.parse("1")
    Quantity('2500m')
    >>> Quantity.parse("1.5Gi").value()
    1610612736
    """

    __slots__ = ("_fast", "_number", "_scale", "_text", "format")

    def __init__(
        self,
        number: int,
        scale: int = 0,
        format: Format = Format.DECIMAL_SI,  # noqa: A002 - upstream's word
        *,
        text: str | None = None,
        fast: bool | None = None,
    ) -> None:
        if scale < NANO:
            number, scale = _divide_up(number, NANO - scale), NANO
        self._number = number
        self._scale = scale
        self.format = format
        self._text = text
        self._fast = _fits(number) if fast is None else fast

    @staticmethod
    def parse(text: str) -> Quantity:
        """Read a quantity.

        Raises:
            QuantityError: no number, or an unknown suffix.
        """
        return _parse_cached(text)

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self._number > 0) - (self._number < 0)

    @property
    def is_zero(self) -> bool:
        """Whether it is nothing."""
        return self._number == 0

    @property
    def dec(self) -> tuple[int, int]:
        """The exact number as ``(integer, power of ten)``."""
        return self._number, self._scale

    def value(self) -> int:
        """The number, fractions rounded away from zero."""
        return self.scaled_value(0)

    def milli_value(self) -> int:
        """The number in thousandths, fractions rounded away from zero."""
        if self._scale == 0:
            return self._number * 1000
        return self.scaled_value(-3)

    def scaled_value(self, scale: int) -> int:
        """The number in units of ``10 ** scale``, fractions rounded away from zero."""
        shift = self._scale - scale
        return self._number * 10**shift if shift >= 0 else _divide_up(self._number, -shift)

    def as_int64(self) -> int | None:
        """The number where upstream holds it as a 64-bit integer without a fraction."""
        if not self._fast:
            return None
        number = self._number
        if self._scale < 0:
            return None
        number *= 10**self._scale
        return number if _fits(number) else None

    def round_up(self, scale: int) -> tuple[Quantity, bool]:
        """Round away from zero to a multiple of ``10 ** scale``; also whether nothing was lost."""
        if scale <= self._scale:
            return self, True
        number = self.scaled_value(scale)
        exact = number * 10 ** (scale - self._scale) == self._number
        return Quantity(number, scale, self.format, fast=self._fast), exact

    def canonical(self) -> str:
        """The canonical form: the largest suffix that leaves an integer."""
        if self._number == 0:
            return "0"
        if self.format is Format.BINARY_SI:
            whole, rest = divmod(
                self._number * 10 ** max(self._scale, 0), 10 ** max(-self._scale, 0)
            )
            if rest == 0 and not -1024 < whole < 1024:
                return _canonical_binary(whole)
        number, power = self._number, self._scale
        while number % 10 == 0:
            number //= 10
            power += 1
        number *= 10 ** (power % 3)
        power -= power % 3
        if self.format is Format.DECIMAL_EXPONENT:
            return f"{number}e{power}" if power else str(number)
        # Above exa upstream has no suffix and prints none; the text then says less than the value.
        return f"{number}{_DECIMAL_NAMES.get(power, '')}"

    def __str__(self) -> str:
        return self.canonical() if self._text is None else self._text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def _aligned(self, other: Quantity) -> tuple[int, int, int]:
        scale = min(self._scale, other._scale)
        return (
            self._number * 10 ** (self._scale - scale),
            other._number * 10 ** (other._scale - scale),
            scale,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        left, right, _ = self._aligned(other)
        return left == right

    def __lt__(self, other: Quantity) -> bool:
        left, right, _ = self._aligned(other)
        return left < right

    def __le__(self, other: Quantity) -> bool:
        left, right, _ = self._aligned(other)
        return left <= right

    def __gt__(self, other: Quantity) -> bool:
        return other < self

    def __ge__(self, other: Quantity) -> bool:
        return other <= self

    def __hash__(self) -> int:
        return hash(self._number * 10 ** (self._scale - NANO))

    def __add__(self, other: Quantity) -> Quantity:
        if self._number == 0 and self._fast and other._fast:
            return Quantity(other._number, other._scale, other.format)
        left, right, scale = self._aligned(other)
        kept = other.format if self._number == 0 else self.format
        return Quantity(left + right, scale, kept, fast=self._stays_fast(other, left + right))

    def __sub__(self, other: Quantity) -> Quantity:
        if self._number == 0 and self._fast and other._fast:
            return Quantity(-other._number, other._scale, other.format)
        left, right, scale = self._aligned(other)
        kept = other.format if self._number == 0 else self.format
        return Quantity(left - right, scale, kept, fast=self._stays_fast(other, left - right))

    def _stays_fast(self, other: Quantity, result: int) -> bool:
        return self._fast and other._fast and _fits(result)

    def __neg__(self) -> Quantity:
        return Quantity(-self._number, self._scale, self.format, fast=self._fast)

    def __mul__(self, factor: int) -> Quantity:
        number = self._number * factor
        return Quantity(number, self._scale, self.format, fast=self._fast and _fits(number))


def _fits(number: int) -> bool:
    """Whether upstream holds it as a 64-bit integer."""
    return -(2**63) <= number <= _MAX


ZERO: Final = Quantity(0)

NULL: Final = Quantity(0, 0, Format.UNSET)
"""What a JSON ``null`` is: nothing, and in no format (upstream's zero value)."""


@lru_cache(maxsize=4096)
def _parse_cached(text: str) -> Quantity:
    return _parse(text)


def _parse(text: str) -> Quantity:
    if text == "0":
        return Quantity(0, text=text)
    match = _PARTS.match(text) if 0 < len(text) <= _MAX_TEXT else None
    if match is None or match.end() != len(text):
        raise QuantityError(_FORMAT_WRONG)
    sign, _, digits, fraction, suffix = match.groups()
    if fraction is None and not digits and not suffix:
        if not match[2] and sign == "":
            raise QuantityError(_FORMAT_WRONG)
        return Quantity(0)
    power, binary, form = _read_suffix(suffix)
    digits = digits or "0"
    fraction = fraction or ""
    number = int(digits + fraction)
    if binary is None:
        fast = len(digits) + len(fraction) <= _MAX_DIGITS_FAST and power - len(fraction) >= NANO
    else:
        fast = not fraction and 14 - len(digits) - binary * 3 // 10 >= 0
    negative = sign == "-"
    if fast:
        kept = (
            text if _keeps_text(digits + fraction, number, power - len(fraction), binary) else None
        )
        number <<= binary or 0
        if power > _HUGE_EXPONENT - len(digits):
            if number:
                raise QuantityError(_TOO_LARGE)
            power = 0
        return Quantity(-number if negative else number, power - len(fraction), form, text=kept)
    return _read_slowly(number << (binary or 0), power - len(fraction), form, negative=negative)


def _keeps_text(digits: str, number: int, power: int, binary: int | None) -> bool:
    if binary is not None:
        return number % 8 != 0
    return power % 3 == 0 and not digits.endswith("000") and digits[0] != "0"


def _read_suffix(suffix: str) -> tuple[int, int | None, Format]:
    """The power of ten, the power of two if it is one, and the format."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], None, Format.DECIMAL_SI
    if suffix in _BINARY:
        return 0, _BINARY[suffix], Format.BINARY_SI
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise QuantityError(_SUFFIX_WRONG)
    return int(exponent[1]), None, Format.DECIMAL_EXPONENT


def _read_slowly(number: int, power: int, form: Format, *, negative: bool) -> Quantity:
    """What upstream does with big decimals: round up to a billionth; binary ones are capped."""
    if number:
        magnitude = power + len(str(number))
        if magnitude > _HUGE_EXPONENT:
            raise QuantityError(_TOO_LARGE)
        if magnitude < NANO:
            number, power = 1, NANO
        elif power < NANO:
            number, power = _divide_up(number, NANO - power), NANO
        if power >= 0:
            number, power = number * 10**power, 0
        if form is Format.BINARY_SI and number > _MAX * 10**-power:
            number, power = _MAX, 0
        if form is Format.BINARY_SI and number < 10**-power:
            form = Format.DECIMAL_SI
    else:
        power = 0
    return Quantity(-number if negative else number, power, form, fast=False)


def _canonical_binary(whole: int) -> str:
    power = 0
    while whole % 1024 == 0 and power < 60:
        whole //= 1024
        power += 10
    return f"{whole}{_BINARY_NAMES[power]}"


def _divide_up(number: int, places: int) -> int:
    """``number / 10 ** places``, rounded away from zero."""
    if places > _HUGE_EXPONENT and number.bit_length() < 200:
        return (number > 0) - (number < 0)
    divisor: int = 10**places
    return -(-number // divisor) if number > 0 else number // divisor
