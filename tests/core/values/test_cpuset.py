"""CPUSet obeys the laws of a set algebra and reads and prints the kernel's formats."""

from __future__ import annotations

import operator
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.values.cpuset import MAX_CPU, CPUSet, CPUSetError, iter_bits, mask_ranges

cpus = st.sets(st.integers(0, 300), max_size=40)
sets = cpus.map(CPUSet)


@given(sets, sets, sets)
def test_union_and_intersection_form_a_distributive_lattice(
    a: CPUSet, b: CPUSet, c: CPUSet
) -> None:
    empty = CPUSet()
    assert a | b == b | a
    assert a & b == b & a
    assert (a | b) | c == a | (b | c)
    assert (a & b) & c == a & (b & c)
    assert a & (b | c) == (a & b) | (a & c)
    assert a | (b & c) == (a | b) & (a | c)
    assert a | (a & b) == a == a & (a | b)
    assert a | empty == a
    assert a & empty == empty


@given(sets, sets, sets)
def test_difference_is_intersection_with_the_complement(a: CPUSet, b: CPUSet, c: CPUSet) -> None:
    universe = a | b | c
    assert a - b == a & (universe - b)
    assert universe - (a | b) == (universe - a) & (universe - b)
    assert universe - (a & b) == (universe - a) | (universe - b)
    assert a ^ b == (a | b) - (a & b)
    assert (a - b).isdisjoint(b)


@given(cpus, cpus)
def test_every_operation_agrees_with_frozenset(a: set[int], b: set[int]) -> None:
    left, right = CPUSet(a), CPUSet(b)
    for ours, theirs in [
        (left | right, a | b),
        (left & right, a & b),
        (left - right, a - b),
        (left ^ right, a ^ b),
    ]:
        assert list(ours) == sorted(theirs)
        assert len(ours) == len(theirs)
    assert (left <= right, left < right, left >= right, left > right) == (
        a <= b,
        a < b,
        a >= b,
        a > b,
    )
    assert left.isdisjoint(right) == a.isdisjoint(b)
    assert all((cpu in left) == (cpu in a) for cpu in range(301))


@given(sets, sets)
def test_order_is_antisymmetric_and_equal_sets_have_equal_hashes(a: CPUSet, b: CPUSet) -> None:
    assert (a <= b and a >= b) == (a == b)
    assert hash(a) == hash(CPUSet(list(a)))
    assert bool(a) == (len(a) > 0)


@given(sets)
def test_list_and_mask_formats_round_trip(a: CPUSet) -> None:
    assert CPUSet.parse(str(a)) == a
    assert CPUSet.parse_hex(a.hex()) == a
    assert CPUSet.from_mask(a.mask) == a
    assert pickle.loads(pickle.dumps(a)) == a  # noqa: S301 - our own bytes


@given(sets)
def test_ranges_are_sorted_and_as_long_as_possible(a: CPUSet) -> None:
    ranges = list(mask_ranges(a.mask))
    assert [cpu for low, high in ranges for cpu in range(low, high + 1)] == list(a)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 9))
def test_a_stride_is_what_range_gives(low: int, length: int, step: int) -> None:
    assert list(CPUSet.parse(f"{low}-{low + length}:{step}")) == list(
        range(low, low + length + 1, step)
    )


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9), st.integers(1, 9))
def test_a_grouped_stride_takes_the_first_of_each_group(
    low: int, length: int, used: int, group: int
) -> None:
    used = min(used, group)
    expected = [c for c in range(low, low + length + 1) if (c - low) % group < used]
    assert list(CPUSet.parse(f"{low}-{low + length}:{used}/{group}")) == expected


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        (" 0-3,8\n", "0-3,8"),
        ("8,0,1,2,3", "0-3,8"),
        ("0-30:2", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30"),
        ("0-3, 5", "0-3,5"),
        ("1-1", "1"),
        ("0-7:2/4", "0-1,4-5"),
    ],
)
def test_lists_that_people_write(text: str, printed: str) -> None:
    assert str(CPUSet.parse(text)) == printed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x", "'x'"),
        ("0-", "'0-'"),
        ("-1", "'-1'"),
        ("3-1", "runs downwards"),
        ("0,,1", "''"),
        ("0-3:0", "stride"),
        ("0-3:3/2", "stride"),
        ("0-99999999", str(MAX_CPU)),
        ("1 2", "'1 2'"),
        ("\u0661", "is no CPU id"),
        ("1" * 5000, "..."),
    ],
)
def test_bad_lists_are_named(text: str, complaint: str) -> None:
    with pytest.raises(CPUSetError, match=re.escape(complaint)):
        CPUSet.parse(text)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        ("0", ""),
        ("f", "0-3"),
        ("ffffffff,00000000", "32-63"),
        ("0x00000001,,0x00000002", "1,64"),
        ("00000000,00000101\n", "0,8"),
    ],
)
def test_masks_of_the_kernel_and_of_hwloc(text: str, printed: str) -> None:
    assert str(CPUSet.parse_hex(text)) == printed


@pytest.mark.parametrize("text", ["g", "1,123456789", "0x", "f" * 20000, "-1"])
def test_bad_masks_are_refused(text: str) -> None:
    with pytest.raises(CPUSetError):
        CPUSet.parse_hex(text)


@given(st.text(max_size=30))
def test_any_text_is_a_set_or_a_named_error(text: str) -> None:
    for parse in (CPUSet.parse, CPUSet.parse_hex):
        with suppress(CPUSetError):
            assert isinstance(parse(text), CPUSet)


def test_a_set_cannot_be_changed_or_made_of_negative_ids() -> None:
    made = CPUSet([1])
    with pytest.raises(AttributeError):
        setattr(made, "_mask", 2)  # noqa: B010 - what the type checker forbids
    with pytest.raises(CPUSetError):
        CPUSet([-1])
    with pytest.raises(CPUSetError):
        CPUSet.from_mask(-1)
    assert list(iter_bits(0b1010)) == [1, 3]
    assert repr(CPUSet([0, 1])) == "CPUSet('0-1')"
    assert (made == 3) is False
    assert "1" not in made


ANY: Any = CPUSet
"""What is called without types."""
TRUE: Any = True
OPERATORS = (
    operator.or_,
    operator.and_,
    operator.sub,
    operator.xor,
    operator.le,
    operator.lt,
    operator.ge,
    operator.gt,
)


@pytest.mark.parametrize("apply", OPERATORS)
@pytest.mark.parametrize("other", [{1}, frozenset({1}), 1, "1", None, [1]])
def test_an_operator_takes_no_other_thing(
    apply: Callable[[object, object], object], other: object
) -> None:
    for left, right in ((CPUSet([1]), other), (other, CPUSet([1]))):
        with pytest.raises(TypeError):
            apply(left, right)
    assert CPUSet([1]) != other


class Answering:
    """Somebody who knows how to be combined with a CPUSet is asked."""

    def __ror__(self, other: object) -> str:
        return f"{other} and more"


def test_the_other_side_is_asked() -> None:
    assert CPUSet([1]) | Answering() == "1 and more"


class Id:
    """An integer of another make, as numpy's are."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def test_ids_of_another_make_are_taken() -> None:
    assert CPUSet([Id(3), Id(0)]) == CPUSet([0, 3])  # type: ignore[list-item] # wrong on purpose
    assert CPUSet.from_mask(Id(5)) == CPUSet([0, 2])  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(CPUSetError, match="65536"):
        CPUSet([Id(65536)])  # type: ignore[list-item] # wrong on purpose


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ANY("0-3"), "cpus must be CPU ids, which CPUSet.parse reads of a text"),
        (lambda: ANY(b"0-3"), "cpus must be CPU ids, which CPUSet.parse reads of a text"),
        (lambda: ANY(3), "cpus must be several CPU ids, such as [0, 1], not 3"),
        (lambda: ANY([1.0]), "each CPU id must be a whole number, not 1.0"),
        (lambda: ANY([True]), "each CPU id must be a whole number, not True"),
        (lambda: ANY(["1"]), "each CPU id must be a whole number, not '1'"),
        (lambda: ANY.from_mask("1"), "mask must be a whole number, not '1'"),
        (lambda: ANY.from_mask(TRUE), "mask must be a whole number, not True"),
        (lambda: ANY.union_of([{1}]), "each of the sets must be a CPUSet, not {1}"),
        (lambda: ANY.parse(3), "text must be a list of CPUs such as '0-3,8', not 3"),
        (lambda: ANY.parse_hex(3), "text must be a mask such as 'ff' or '1,00000000', not 3"),
        (lambda: ANY().isdisjoint({1}), "other must be a CPUSet, not {1}"),
    ],
)
def test_a_wrong_type_is_told(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        make()


@given(st.integers(-5, 2 * MAX_CPU))
def test_there_is_one_limit(cpu: int) -> None:
    """An id is taken by all that make a set, or by none."""
    makers: tuple[Callable[[], CPUSet], ...] = (
        lambda: CPUSet([cpu]),
        lambda: CPUSet([Id(cpu)]),  # type: ignore[list-item] # wrong on purpose
        lambda: CPUSet.parse(str(cpu)),
        lambda: CPUSet.from_mask(1 << cpu if cpu >= 0 else cpu),
        lambda: CPUSet.parse_hex(f"{1 << cpu:x}" if cpu >= 0 else str(cpu)),
    )
    for make in makers:
        if 0 <= cpu <= MAX_CPU:
            assert list(make()) == [cpu]
        else:
            with pytest.raises(CPUSetError):
                make()
