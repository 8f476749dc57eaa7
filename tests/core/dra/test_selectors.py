"""The expressions that people write about devices, and what of them no class can say."""

from __future__ import annotations

import pytest

from pinfold.core.classes.resource_class import Requirement
from pinfold.core.dra.cel import CELError, parse
from pinfold.core.dra.selectors import Naming, selectors

A = 'device.attributes["d.io"]'
C = 'device.capacity["d.io"]'
EVERYTHING = ((Requirement("resourceName", "Exists"),),)
OURS = Requirement("driver", "DoesNotExist")


def among(key: str, *values: str) -> Requirement:
    return Requirement(key, "In", values)


def not_among(key: str, *values: str) -> Requirement:
    return Requirement(key, "NotIn", values)


def there(key: str) -> Requirement:
    return Requirement(key, "Exists")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{A}.model == "x"', ((among("model", "x"),),)),
        (f"'x' == {A}['model']", ((among("model", "x"),),)),
        (f'{A}.model in ["x", "y",]', ((among("model", "x", "y"),),)),
        (
            f'({A}.model == "x" || {A}.model == "y")',
            ((among("model", "x"),), (among("model", "y"),)),
        ),
        (f'has({A}.model) && {A}.model == "x"', ((among("model", "x"),),)),
        (f'"model" in {A} && {A}.model != "x"', ((there("model"), not_among("model", "x")),)),
        (f'{A}.model != "x"', ((there("model"), not_among("model", "x")),)),
        (f'!("model" in {A} && {A}.model == "x")', ((not_among("model", "x"),),)),
        (f'!({A}.model in ["x"])', ((there("model"), not_among("model", "x")),)),
        (
            f'!("model" in {A}) || {A}.model != "x"',
            (
                (Requirement("model", "DoesNotExist"),),
                (there("model"), not_among("model", "x")),
            ),
        ),
        (
            f'!("model" in {A} && ({A}.model == "x" || {A}.model == "y"))',
            (
                (Requirement("model", "DoesNotExist"),),
                (not_among("model", "x"), not_among("model", "y")),
            ),
        ),
        (
            f'!({A}.a == "x" && {A}.b == "y")',
            ((there("a"), not_among("a", "x")), (there("b"), not_among("b", "y"))),
        ),
        (
            f'{A}.a == "x" && ({A}.b == "y" || {A}.b == "z")',
            ((among("a", "x"), among("b", "y")), (among("a", "x"), among("b", "z"))),
        ),
        (f"{A}.fast", ((among("fast", "true"),),)),
        (f"!{A}.fast", ((there("fast"), not_among("fast", "true")),)),
        (f"!!{A}.fast", ((among("fast", "true"),),)),
        (f"{A}.fast == false", ((among("fast", "false"),),)),
        (f"{A}.numa == 1", ((among("numa", "1"),),)),
        (f"{A}.numa >= -1", ((Requirement("numa", "GtEq", ("-1",)),),)),
        (f"4 > {A}.numa", ((Requirement("numa", "Lt", ("4",)),),)),
        (
            f'{C}.memory.compareTo(quantity("12Gi")) >= 0',
            ((Requirement("memory", "GtEq", ("12Gi",)),),),
        ),
        (
            f'{C}["memory"].isGreaterThan(quantity("1G"))',
            ((Requirement("memory", "Gt", ("1G",)),),),
        ),
        (
            f'{C}.memory == quantity("1G")',
            ((Requirement("memory", "GtEq", ("1G",)), Requirement("memory", "LtEq", ("1G",))),),
        ),
        (
            f'{C}.memory.compareTo(quantity("1G")) != 0',
            ((Requirement("memory", "Gt", ("1G",)),), (Requirement("memory", "Lt", ("1G",)),)),
        ),
        (f'device.driver == "d.io" && {A}.model == "x"', ((OURS, among("model", "x")),)),
        (
            'device.driver == "x.io" && device.attributes["x.io"].model == "m"',
            ((among("driver", "x.io"), among("x.io/model", "m")),),
        ),
        ('device.driver != "x.io"', ((not_among("driver", "x.io"),),)),
        ('device.driver == "d.io"', ((OURS,),)),
        ('device.driver != "d.io"', ((there("driver"),),)),
        ('device.driver in ["d.io", "x.io"]', ((OURS,), (among("driver", "x.io"),))),
        (
            '!(device.driver in ["d.io", "x.io"])',
            ((there("driver"), not_among("driver", "x.io")),),
        ),
        ("true", EVERYTHING),
        ("false", ()),
        (f'{A}.model == "a\\u00e4\\"\\x41\\101\\n"', ((among("model", 'aä"AA\n'),),)),
    ],
)
def test_what_is_understood(text: str, expected: object) -> None:
    assert selectors(parse(text), Naming("d.io")) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it ends too early"),
        (f'{A}.model == "x" &&', "it ends too early"),
        (f'{A}.model = "x"', "is not understood"),
        (f'{A}.model == "x', "is not understood"),
        (f'{A}.model == "\\q"', "is no escape"),
        (f'{A}.model == "\\ud800"', "is no character"),
        (f'{A}.model.startsWith("x")', "a call of startsWith that no class"),
        (f"{A}.model == {A}.other", "a comparison by == that no class"),
        (f'{A}.version.compareTo(semver("1.2.3")) >= 0', "a comparison by >= that no class"),
        (f'{A}.model > "a"', "a comparison by > that no class"),
        (f"{A}.size > 1.5", "is not understood"),
        (f"{A}.numa == {'9' * 40}", "too large a number"),
        (f'{C}.memory >= quantity("1G")', "a comparison by >= that no class"),
        (f'{C}.memory.compareTo(quantity("1G")) >= 1', "a comparison by >= that no class"),
        (f'{C}.memory.compareTo(quantity("much")) >= 0', "is no quantity"),
        (f"{C}.memory.compareTo({C}.other) >= 0", "compared with quantity"),
        (f'!({C}.memory.compareTo(quantity("1G")) >= 0)', "the opposite of a comparison"),
        (f'cel.bind(d, {A}, d.model == "x")', "'cel' is not known"),
        (f'{A}.exists(k, k == "x")', "not known"),
        ("device.attributes", "alone says nothing"),
        ("device", "alone says nothing"),
        ('device.allocated == "x"', "device has no allocated"),
        (f"{A}[0]", "only a text"),
        (f"{A}.model.part", "nothing is known"),
        (A, "a term that no class"),
        ("(" * 80 + "true" + ")" * 80, "nested deeper"),
        ("-" * 2000 + "1 == 1", "not understood"),
        (" && ".join(f'({A}.a{n} == "x" || {A}.b{n} == "y")' for n in range(7)), "more than 64"),
        (" || ".join(f'{A}.a == "{n}"' for n in range(65)), "more than 64"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CELError) as caught:
        selectors(parse(text), Naming("d.io"))
    assert problem in str(caught.value)
