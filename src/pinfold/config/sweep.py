"""Fields of a KubeletConfiguration by one name, with dots, so that their values can be tried.

``cpuManagerPolicyOptions.full-pcpus-only`` is a value in a map, ``pinfold.dynamic.makeRoom`` one in
the agent's section.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pinfold.config.records import meant
from pinfold.config.section import setting_names
from pinfold.config.settings import SETTINGS
from pinfold.config.values import (
    AGENT_SECTION,
    eviction_hard,
    feature_gates,
    reserved,
    show,
    texts,
)

_MAPS: Final = (texts, reserved, eviction_hard, feature_gates)


def no_such_field(name: str) -> str:
    """Why a configuration has no such field, or none that decides placements; "" where it has."""
    first, dot, rest = name.partition(".")
    if first == AGENT_SECTION:
        own = setting_names()
        group = rest.partition(".")[0]
        return "" if group in own else f"the section has no {show(group)}{meant(group, own)}"
    known = {setting.field: setting for setting in SETTINGS}
    if first not in known:
        every = [*known, AGENT_SECTION]
        return f"no field of a KubeletConfiguration that decides placements{meant(first, every)}"
    if dot and not (rest and known[first].parse in _MAPS):
        return f"{first} has no fields of its own; leave out {dot}{rest}"
    return ""


def with_field(fields: Mapping[Any, Any], name: str, value: object) -> Mapping[Any, Any]:
    """The fields of a configuration with another value of one; None: without it."""
    first, _, rest = name.partition(".")
    if first == AGENT_SECTION:
        return _set(fields, tuple(name.split(".")), value)
    return _set(fields, (first, rest) if rest else (first,), value)


def _set(fields: Mapping[Any, Any], steps: tuple[str, ...], value: object) -> Mapping[Any, Any]:
    first, *rest = steps
    if rest:
        held = fields.get(first)
        # What is no mapping is refused by whoever reads it.
        return {**fields, first: _set(held if isinstance(held, Mapping) else {}, (*rest,), value)}
    return {name: held for name, held in {**fields, first: value}.items() if held is not None}


def point_names(values: Mapping[str, object]) -> Iterator[str]:
    """The values of a point of a sweep, as its name has them: ``full-pcpus-only=true``."""
    ends = Counter(_end(name) for name in values)
    for name, value in values.items():
        yield f"{name if ends[_end(name)] > 1 else _end(name)}={written(value)}"


def _end(name: str) -> str:
    return name.partition(".")[2] or name


def written(value: object) -> str:
    """A value on one line, as YAML has it."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={written(held)}" for name, held in value.items()) or "{}"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else str(value)
