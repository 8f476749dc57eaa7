"""Expressions of CEL in manifests, evaluated as an API server does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cel_expr_python import cel  # type: ignore[import-untyped] # it says nothing of its types
from cel_expr_python.ext import (  # type: ignore[import-untyped] # it says nothing of its types
    ext_optional,
    ext_strings,
)

from pinfold.core.values.quantity import Quantity, QuantityError


def is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantityError:
        return False
    return True


IS_QUANTITY = cel.FunctionDecl(
    "isQuantity", [cel.Overload("is_quantity", cel.Type.BOOL, [cel.Type.STRING], impl=is_quantity)]
)
SEEN = ("self", "oldSelf", "object", "oldObject", "request", "variables")
ENVIRONMENT = cel.NewEnv(
    variables=dict.fromkeys(SEEN, cel.Type.DYN),
    extensions=[
        ext_optional.ExtOptional(),
        ext_strings.ExtStrings(),
        cel.CelExtension("quantities", [IS_QUANTITY]),
    ],
)


@lru_cache
def compiled(expression: str) -> Any:
    return ENVIRONMENT.compile(expression)


def evaluated(expression: str, **data: Any) -> Any:
    found = compiled(expression).eval(data=data)
    assert found.type() != cel.Type.ERROR, found.value()
    return found.value()
