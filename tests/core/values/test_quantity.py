"""Quantities: their texts, their order and their arithmetic are exact."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.values.quantity import NULL, ZERO, Format, Quantity, QuantityError

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "e3": Fraction(1000), "E-3": Fraction(1, 1000), "e+2": Fraction(100),
}  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A quantity's text with the number it stands for (nothing below a billionth)."""
    sign = draw(st.sampled_from(["", "+", "-"]))
    whole = draw(st.integers(0, 10**6))
    suffix = draw(st.sampled_from(sorted(SUFFIXES)))
    decimals = "" if suffix in ("n", "u") else draw(st.from_regex(r"\A(\.[0-9]{0,3})?\Z"))
    number = Fraction(f"{whole}{decimals if decimals != '.' else ''}") * SUFFIXES[suffix]
    return f"{sign}{whole}{decimals}{suffix}", -number if sign == "-" else number


numbers = st.builds(
    Quantity,
    st.integers(-(10**12), 10**12),
    st.integers(-9, 6),
    st.sampled_from(Format),
)


def exact(quantity: Quantity) -> Fraction:
    number, power = quantity.dec
    return number * Fraction(10) ** power


def away_from_zero(number: Fraction) -> int:
    whole = -(-abs(number).numerator // number.denominator)
    return whole if number >= 0 else -whole


@given(texts())
def test_a_text_stands_for_its_number(case: tuple[str, Fraction]) -> None:
    text, number = case
    quantity = Quantity.parse(text)
    assert exact(quantity) == number
    assert quantity.value() == away_from_zero(number)
    assert quantity.milli_value() == away_from_zero(number * 1000)
    assert quantity.sign == (number > 0) - (number < 0)
    assert quantity.is_zero == (number == 0)


@given(texts())
def test_what_is_printed_is_read_again(case: tuple[str, Fraction]) -> None:
    quantity = Quantity.parse(case[0])
    assert Quantity.parse(str(quantity)) == quantity
    canonical = quantity.canonical()
    again = Quantity.parse(canonical)
    assert (again, again.canonical()) == (quantity, canonical)


@given(numbers)
def test_what_is_computed_is_read_again(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert hash(again) == hash(quantity)


@given(numbers, numbers)
def test_the_order_is_that_of_the_numbers(a: Quantity, b: Quantity) -> None:
    left, right = exact(a), exact(b)
    assert (a < b, a <= b, a == b, a >= b, a > b) == (
        left < right,
        left <= right,
        left == right,
        left >= right,
        left > right,
    )
    if a == b:
        assert hash(a) == hash(b)


@given(numbers, numbers, st.integers(-1000, 1000))
def test_arithmetic_is_exact(a: Quantity, b: Quantity, factor: int) -> None:
    assert exact(a + b) == exact(a) + exact(b)
    assert exact(a - b) == exact(a) - exact(b)
    assert exact(a * factor) == exact(a) * factor
    assert -a == ZERO - a
    assert a + b == b + a
    assert (a + b) - b == a


@given(numbers, numbers)
def test_a_sum_keeps_the_form_of_its_first_part(a: Quantity, b: Quantity) -> None:
    assert (a + b).format is (b.format if a.is_zero else a.format)


@given(numbers, st.integers(-9, 9))
def test_rounding_goes_away_from_zero(quantity: Quantity, scale: int) -> None:
    rounded, kept = quantity.round_up(scale)
    unit = Fraction(10) ** scale
    assert kept == (exact(rounded) == exact(quantity))
    assert abs(exact(quantity)) <= abs(exact(rounded)) < abs(exact(quantity)) + unit
    assert quantity.scaled_value(scale) == away_from_zero(exact(quantity) / unit)


@given(st.text(max_size=30) | st.text("0123456789.+-eEinumkKMGTP", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        return
    str(quantity)
    quantity.canonical()
    quantity.value()
    quantity.milli_value()
    hash(quantity)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "quantities must match the regular expression"),
        (" 1", "quantities must match the regular expression"),
        ("1 Gi", "quantities must match the regular expression"),
        ("1,5", "quantities must match the regular expression"),
        ("\u0661", "quantities must match the regular expression"),
        ("1GB", "quantities must match the regular expression"),
        ("1e", "unable to parse quantity's suffix"),
        ("1mi", "unable to parse quantity's suffix"),
        ("1KiKi", "unable to parse quantity's suffix"),
    ],
)
def test_what_is_no_quantity(text: str, complaint: str) -> None:
    with pytest.raises(QuantityError) as error:
        Quantity.parse(text)
    assert str(error.value).startswith(complaint)


@pytest.mark.parametrize(
    "text",
    ["1e999999999", "-1e999999999", "9" * 10_000_000, "1e" + "9" * 10_000_000, "9" * 4000],
    ids=["exponent", "negative", "digits", "digits of the exponent", "more than any resource"],
)
def test_absurd_numbers_are_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(QuantityError):
        Quantity.parse(text)
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("text", ["0e999999999", "-0.0e999999999", "0e-999999999"])
def test_nothing_is_nothing_at_any_scale(text: str) -> None:
    quantity = Quantity.parse(text)
    assert quantity.is_zero
    assert (quantity, quantity.value(), quantity.canonical()) == (ZERO, 0, "0")


@pytest.mark.parametrize("text", ["1e-999999999", "0." + "0" * 3000 + "1", "1n", "0.1n"])
def test_tiny_numbers_are_a_billionth(text: str) -> None:
    assert Quantity.parse(text) == Quantity(1, -9)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1e3", "1e3"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("-0.001", "-1m"),
        ("00012", "12"),
    ],
)
def test_canonical_forms(text: str, printed: str) -> None:
    assert Quantity.parse(text).canonical() == printed


def test_a_text_is_kept_where_upstream_keeps_it() -> None:
    assert str(Quantity.parse("0.50")) == "500m"
    assert str(Quantity.parse("1.000001")) == "1.000001"
    assert str(Quantity.parse("1025Mi")) == "1025Mi"
    assert str(Quantity.parse("1025Mi") + Quantity.parse("0")) == "1025Mi"


def test_a_number_is_compared_with_quantities_only() -> None:
    assert Quantity(1) != 1
    assert Quantity(2**63).as_int64() is None
    assert Quantity.parse("5k").as_int64() == 5000
    assert Quantity.parse("5m").as_int64() is None


def test_64_bits_are_enough_up_to_the_last_number() -> None:
    """Upstream goes on with exact decimals beyond, which have no 64-bit integer any more."""
    lowest, highest = -(2**63), 2**63 - 1
    for number in (lowest, highest):
        assert Quantity(number).as_int64() == number
        step = number // abs(number)
        one_less = Quantity(number - step)
        assert (one_less + Quantity(step)).as_int64() == number
        assert (one_less - Quantity(-step)).as_int64() == number
        beyond = one_less + Quantity(2 * step)
        assert (beyond.value(), beyond.as_int64()) == (number + step, None)
        assert Quantity(number + step).as_int64() is None
        assert (beyond - Quantity(2 * step)).as_int64() is None, "once an exact decimal, always one"
    assert (Quantity(-(2**62)) * 2).as_int64() == lowest
    assert (Quantity(2**62) * 2).as_int64() is None
    thousands = highest // 1000
    assert Quantity(-thousands, 3).as_int64() == -thousands * 1000
    assert Quantity(-thousands - 1, 3).as_int64() is None


@pytest.mark.parametrize("digits", [64, 65, 66, 100, 300])
def test_numbers_of_many_digits_are_exact(digits: int) -> None:
    number = 10**digits - 1 - 2 * 10 ** (digits - 1)
    text = str(number)
    read = Quantity.parse(text)
    assert (read.value(), str(read), read.as_int64()) == (number, text, None)
    assert read.milli_value() == number * 1000
    assert (read + read).value() == 2 * number
    assert Quantity.parse(f"-{text}") < -Quantity.parse(text[:-1]) < ZERO
    assert Quantity.parse(f"{text[0]}e{digits - 1}").value() == int(text[0]) * 10 ** (digits - 1)
    float(read.milli_value())


@pytest.mark.parametrize("text", ["1" * 301, "1e300", "9e999999999999999999", f"1{'0' * 4000}"])
def test_numbers_of_more_digits_than_any_resource_has_are_refused(text: str) -> None:
    with pytest.raises(QuantityError, match=r"larger than 10\^300"):
        Quantity.parse(text)


@given(numbers.filter(lambda number: number.format is not Format.UNSET))
def test_nothing_of_no_format_takes_the_format_of_what_is_added(number: Quantity) -> None:
    assert (str(NULL), NULL.sign, NULL.as_int64(), NULL == ZERO) == ("0", 0, 0, True)
    assert (NULL + number).format is number.format
    assert (NULL + number) == number == (number - NULL)
