"""What a class selects, as an expression of CEL about a device, and back.

A property is an attribute (a text), and a capacity besides where it is a quantity.  ``In`` and
``NotIn`` look at the attribute, ``Gt`` and the like at the capacity, the rest at both.  That it is
missing is never an error: each look is behind one whether it is there.

The way back understands what is written here, and the common forms that people write.  Anything
else is refused: an expression that is nearly understood selects other devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.classes.api import MOST_SELECTORS
from pinfold.core.classes.compute_resource import RESOURCE_NAME
from pinfold.core.classes.resource_class import (
    DOES_NOT_EXIST,
    EXISTS,
    IN,
    NOT_IN,
    ORDER,
    Requirement,
    ResourceClass,
)
from pinfold.core.dra.cel import (
    ATTRIBUTES,
    CAPACITY,
    COMPARISONS,
    DEVICE,
    DRIVER,
    Call,
    CELError,
    Comparison,
    Every,
    Items,
    Known,
    Literal,
    Node,
    Not,
    Some,
    member,
    quoted,
)
from pinfold.core.dra.names import attribute_name, property_key
from pinfold.core.values.quantity import Quantity, QuantityError

DRIVER_PROPERTY: Final = "driver"
"""The property that says which driver has a device: of all drivers but the one that is named."""

_SIGNS: Final = dict(zip(ORDER, (">", ">=", "<", "<="), strict=True))
_ORDERS: Final = {sign: operator for operator, sign in _SIGNS.items()}
_FLIPPED: Final = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPPOSITE: Final = {IN: NOT_IN, NOT_IN: IN, EXISTS: DOES_NOT_EXIST, DOES_NOT_EXIST: EXISTS}
_METHODS: Final = {"isGreaterThan": "Gt", "isLessThan": "Lt"}

Selector = tuple[Requirement, ...]


class Naming(Struct, frozen=True):
    """Which attributes are properties without a domain: those of ``driver``, None for no driver.

    ``known`` are the properties that could not keep their names (:func:`made_names`).
    """

    driver: str | None = None
    known: Mapping[str, str] = MappingProxyType({})


def expression(one: ResourceClass, driver: str) -> str:
    """What a class selects, other classes aside.

    >>> print(expression(ResourceClass("a", ((Requirement("model", "In", ("x",)),),)), "d.io"))
    "model" in device.attributes["d.io"] && device.attributes["d.io"].model == "x"
    """
    texts = [" && ".join(_text(each, driver) for each in selector) for selector in one.selectors]
    if len(texts) > 1:
        return " || ".join(f"({text})" for text in texts)
    return texts[0] if texts else "false"


def _text(one: Requirement, driver: str) -> str:
    domain, identifier = attribute_name(one.key, driver)
    attributes = f"{DEVICE}.{ATTRIBUTES}[{quoted(domain)}]"
    capacity = f"{DEVICE}.{CAPACITY}[{quoted(domain)}]"
    name = quoted(identifier)
    if one.operator in (EXISTS, DOES_NOT_EXIST):
        sign = "" if one.operator == EXISTS else "!"
        return f"{sign}({name} in {attributes} || {name} in {capacity})"
    if one.operator in ORDER:
        bound = f"quantity({quoted(one.values[0])})"
        held = f"{member(capacity, identifier)}.compareTo({bound})"
        return f"{name} in {capacity} && {held} {_SIGNS[one.operator]} 0"
    values = ", ".join(quoted(value) for value in one.values)
    among = f"== {values}" if len(one.values) == 1 else f"in [{values}]"
    text = f"{name} in {attributes} && {member(attributes, identifier)} {among}"
    return text if one.operator == IN else f"!({text})"


def selectors(node: Node, naming: Naming) -> tuple[Selector, ...]:
    """The selectors of a class that stand for an expression.

    Raises:
        CELError: nothing of a class stands for it.
    """
    found = _alternatives(node, naming, frozenset(), negated=False)
    everything = (Requirement(RESOURCE_NAME, EXISTS),)
    return tuple(tuple(one.requirement for one in each) or everything for each in found)


class _Atom(Struct, frozen=True):
    """A requirement.

    ``guards`` where it is nothing but the look whether something is there, before another look.
    """

    requirement: Requirement
    guards: bool = False

    @property
    def needs_it(self) -> bool:
        return self.requirement.operator in (IN, EXISTS, *ORDER)


_All = tuple[_Atom, ...]
_NOTHING: Final[tuple[_All, ...]] = ()
_ANYTHING: Final[tuple[_All, ...]] = ((),)


def _alternatives(
    node: Node, naming: Naming, guarded: frozenset[Known], *, negated: bool
) -> tuple[_All, ...]:
    """An expression, or its opposite, as alternatives, each of what must be true together.

    Args:
        node: the expression.
        naming: see there.
        guarded: the entries of which it is known here that they are there.
        negated: whether the opposite is wanted.
    """
    match node:
        case Not(of=of):
            return _alternatives(of, naming, guarded, negated=not negated)
        case Every(items=items):
            flat = tuple(_flat(items, Every))
            there = {entry for item in flat if (entry := _presence(item)) is not None}
            inside = guarded | there
            if negated:
                looked = {_looked_at(item) for item in flat}
                kept = [item for item in flat if _presence(item) not in there & looked]
                return _union(_alternatives(item, naming, inside, negated=True) for item in kept)
            return _product(_alternatives(item, naming, inside, negated=False) for item in flat)
        case Some(items=items):
            either = _in_either(items)
            if either is not None:
                return _one(Requirement(_key(either, naming), EXISTS), negated=negated)
            each = (
                _alternatives(item, naming, guarded, negated=negated) for item in _flat(items, Some)
            )
            return _product(each) if negated else _union(each)
        case Literal(value=bool(value)):
            return _ANYTHING if value != negated else _NOTHING
    return _leaf(node, naming, guarded, negated=negated)


def _leaf(
    node: Node, naming: Naming, guarded: frozenset[Known], *, negated: bool
) -> tuple[_All, ...]:
    entry = _presence(node)
    if entry is not None:
        requirement = Requirement(_key(entry, naming), DOES_NOT_EXIST if negated else EXISTS)
        return ((_Atom(requirement, guards=not negated),),)
    match node:
        case Known(part="attributes", identifier=str()):
            return _among(node, ("true",), naming, guarded, negated=negated)
        case Call(name=name, target=Known(part="capacity", identifier=str()) as known) if (
            name in _METHODS
        ):
            return _ordered(known, _METHODS[name], _bound(node.arguments), naming, negated=negated)
        case Comparison(operator=operator, left=Literal() as left, right=right) if (
            operator in COMPARISONS and not isinstance(right, Literal)
        ):
            turned = Comparison(_FLIPPED[operator], right, left)
            return _leaf(turned, naming, guarded, negated=negated)
        case Comparison(operator=operator, left=left, right=right):
            opposite = operator == "!="
            if opposite or operator in ("==", "in"):
                found = _equality(left, right, naming, guarded, negated=negated != opposite)
                if found is not None:
                    return found
            return _order(node, naming, negated=negated)
    called = f"a call of {node.name}" if isinstance(node, Call) else "a term"
    raise CELError(f"{called} that no class has a requirement for")


def _equality(
    left: Node, right: Node, naming: Naming, guarded: frozenset[Known], *, negated: bool
) -> tuple[_All, ...] | None:
    """``left`` is ``right``, or one of it; None where that is no matter of texts."""
    items = right.items if isinstance(right, Items) else (right,)
    values = tuple(_value(item) for item in items if isinstance(item, Literal))
    if len(values) != len(items):
        return None
    match left:
        case Known(part="driver"):
            return _of_drivers(values, naming, negated=negated)
        case Known(part="attributes", identifier=str()):
            return _among(left, values, naming, guarded, negated=negated)
    return None


def _of_drivers(values: tuple[str, ...], naming: Naming, *, negated: bool) -> tuple[_All, ...]:
    """Of one of the drivers; devices of the one that is named have no property for it."""
    others = tuple(value for value in values if value != naming.driver)
    parts = []
    if len(others) < len(values):
        parts.append(_one(Requirement(DRIVER_PROPERTY, DOES_NOT_EXIST), negated=negated))
    if others:
        parts.append(_one(Requirement(DRIVER_PROPERTY, IN, others), negated=negated))
    return _product(parts) if negated else _union(parts)


def _among(
    entry: Known,
    values: tuple[str, ...],
    naming: Naming,
    guarded: frozenset[Known],
    *,
    negated: bool,
) -> tuple[_All, ...]:
    if not values:
        return _ANYTHING if negated else _NOTHING
    key = _key(entry, naming)
    if negated and entry not in guarded:
        # Where it is missing, the look is an error, which selects nothing either.
        return ((_Atom(Requirement(key, EXISTS)), _Atom(Requirement(key, NOT_IN, values))),)
    if negated:
        return ((_Atom(Requirement(key, NOT_IN, values)),),)
    return ((_Atom(Requirement(key, IN, values)),),)


def _order(node: Comparison, naming: Naming, *, negated: bool) -> tuple[_All, ...]:
    match node:
        case Comparison(
            left=Call(
                name="compareTo", target=Known(part="capacity", identifier=str()) as known
            ) as call,
            right=Literal(value=0),
        ):
            bound = _bound(call.arguments)
        case Comparison(
            operator="==" | "!=",
            left=Known(part="capacity", identifier=str()) as known,
            right=Call(name="quantity", target=None) as call,
        ):
            bound = _bound((call,))
        case Comparison(
            left=Known(part="attributes", identifier=str()) as known,
            right=Literal(value=int(value)),
        ) if not isinstance(value, bool):
            bound = str(value)
        case _:
            raise CELError(f"a comparison by {node.operator} that no class has a requirement for")
    if node.operator in _ORDERS:
        return _ordered(known, _ORDERS[node.operator], bound, naming, negated=negated)
    if node.operator not in ("==", "!="):
        raise CELError("compareTo is compared with 0")
    if (node.operator == "!=") != negated:
        pairs = [_ordered(known, one, bound, naming, negated=False) for one in ("Gt", "Lt")]
        if negated:
            raise CELError(_NO_OPPOSITE)
        return _union(pairs)
    if negated:
        raise CELError(_NO_OPPOSITE)
    return _product(_ordered(known, one, bound, naming, negated=False) for one in ("GtEq", "LtEq"))


_NO_OPPOSITE: Final = "the opposite of a comparison of quantities; say it without a negation"


def _ordered(
    known: Known, operator: str, bound: str, naming: Naming, *, negated: bool
) -> tuple[_All, ...]:
    if negated:
        raise CELError(_NO_OPPOSITE)
    return ((_Atom(Requirement(_key(known, naming), operator, (bound,))),),)


def _bound(arguments: tuple[Node, ...]) -> str:
    match arguments:
        case (Call(name="quantity", target=None, arguments=(Literal(value=str(text)),)),):
            try:
                Quantity.parse(text)
            except QuantityError:
                raise CELError(f"{text[:40]!r} is no quantity") from None
            return text
    raise CELError('a capacity is compared with quantity("...")')


def _one(requirement: Requirement, *, negated: bool) -> tuple[_All, ...]:
    operator = _OPPOSITE[requirement.operator] if negated else requirement.operator
    return ((_Atom(Requirement(requirement.key, operator, requirement.values)),),)


def _presence(node: Node) -> Known | None:
    """The entry of which it is asked whether it is there."""
    match node:
        case Comparison(
            operator="in",
            left=Literal(value=str(identifier)),
            right=Known(part=part, domain=domain, identifier=None),
        ) if part != DRIVER:
            return Known(part, domain, identifier)
        case Call(name="has", target=None, arguments=(Known(identifier=str()) as entry,)):
            return entry
    return None


def _in_either(items: tuple[Node, ...]) -> Known | None:
    """The attribute of which it is asked whether it is there, or the capacity of that name."""
    match [_presence(item) for item in items]:
        case [Known(part="attributes") as one, Known(part="capacity") as other] if (
            one.domain == other.domain and one.identifier == other.identifier
        ):
            return one
    return None


def _looked_at(node: Node) -> Known | None:
    """The entry whose value is asked for, so that what guards it says nothing of its own."""
    match node:
        case Comparison(operator="==" | "in", left=Known(identifier=str()) as entry):
            return entry
        case Comparison(left=Call(target=Known(identifier=str()) as entry)):
            return entry
        case Known(identifier=str()):
            return node
    return None


def _key(entry: Known, naming: Naming) -> str:
    identifier = entry.identifier or ""
    return property_key(entry.domain, identifier, naming.driver, naming.known)


def _value(literal: Literal) -> str:
    value = literal.value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flat(items: Iterable[Node], kind: type[Every | Some]) -> Iterable[Node]:
    for item in items:
        if isinstance(item, kind):
            if kind is Some and _in_either(item.items) is not None:
                yield item
            else:
                yield from _flat(item.items, kind)
        else:
            yield item


def _union(parts: Iterable[tuple[_All, ...]]) -> tuple[_All, ...]:
    return _limited(list(itertools.chain.from_iterable(parts)))


def _product(parts: Iterable[tuple[_All, ...]]) -> tuple[_All, ...]:
    found: list[_All] = [()]
    for part in parts:
        if len(found) * len(part) > MOST_SELECTORS:
            raise CELError(f"more than {MOST_SELECTORS} selectors would stand for it")
        found = [(*before, *after) for before in found for after in part]
    return _limited([_without_guards(one) for one in found])


def _without_guards(atoms: _All) -> _All:
    needed = {one.requirement.key for one in atoms if one.needs_it and not one.guards}
    return tuple(one for one in atoms if not (one.guards and one.requirement.key in needed))


def _limited(found: list[_All]) -> tuple[_All, ...]:
    if len(found) > MOST_SELECTORS or any(len(one) > MOST_SELECTORS for one in found):
        raise CELError(f"more than {MOST_SELECTORS} selectors or requirements would stand for it")
    return tuple(found)
