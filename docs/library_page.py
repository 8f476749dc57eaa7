"""The page of the library: every public name with its signature and its docstring."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import MappingProxyType
from typing import Final

from msgspec import NODEFAULT, Struct

import pinfold

_INTRO: Final = """\
# The library

What `from pinfold import NAME` gives, with all that it raises. [How to use
it](../how-to/use-the-library.md) goes through it by example. Everything else below `pinfold` may
change with any version. All is typed, and passes `mypy --strict`.

Bytes, CPUs and pages are whole numbers, durations are seconds, and quantities are those of
Kubernetes. A path is a text or anything else with `__fspath__`, such as a `pathlib.Path`. Values
are immutable and compare by value. The examples of this page begin with

```pycon
>>> from pinfold import *

```
"""
_ROOMS: Final = {
    "CPUs and quantities": ("CPUSet", "Quantity"),
    "Machines": (
        *("open_machine", "parse_short_form", "Machine", "kubelet_view", "KubeletView"),
        "CPUTopology",
    ),
    "Configuration": (
        *("load_kubelet_config", "LoadedConfig", "NodeConfig"),
        *("named_version", "NamedVersion", "KubeletVersion"),
    ),
    "Pods": (
        *("read_manifests", "Manifests", "pod_from_api", "apply_defaults"),
        *("Pod", "Container", "PodResources", "QOSClass"),
    ),
    "Devices": ("load_devices", "LoadedDevices", "Device", "DeviceResource"),
    "Plans": (
        *("Planner", "Plan", "PodPlacement", "Decision", "ResizeWish", "explain_pod"),
        *("Explanation", "changed_pods", "plan_document"),
    ),
    "Simulation": (
        *("simulate", "Simulation", "load_experiment", "LoadedExperiment"),
        *("runs_table", "fits_table", "reasons_table", "series_table"),
    ),
    "Errors": (
        *("PinfoldError", "ConfigError", "CPUSetError", "ExecutorError", "KubeletVersionError"),
        *("MachineError", "UnseenMachineError", "ManifestError", "MoveError", "NodeError"),
        *("PodError", "QuantityError", "ResizeError", "RunError", "TopologyError", "TraceError"),
        "UnknownPodError",
    ),
}
_SECTION: Final = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_ROLE: Final = re.compile(r":(?:class|func|mod|attr|meth):`(?:[^`<]*<)?[~.]?([^`>]+)>?`")
_WIDEST: Final = 96


def page() -> str:
    """The page below its notice.

    Raises:
        ValueError: a public name is in no section, or in two.
    """
    listed = sorted(name for names in _ROOMS.values() for name in names)
    public = sorted(name for name in pinfold.__all__ if name != "__version__")
    if listed != public:
        raise ValueError(f"in one of both only, or twice: {set(listed) ^ set(public) or listed}")
    parts = [_INTRO]
    for room, names in _ROOMS.items():
        parts.append(f"## {room}\n")
        for name in names:
            parts += _described(name, getattr(pinfold, name))
    return "\n".join(parts)


def _described(name: str, value: object) -> Iterator[str]:
    yield f"### {name}\n"
    if not inspect.isclass(value):
        yield _signature(name, value)
        yield _text(value)
        return
    bases = [base.__name__ for base in value.__bases__ if base.__name__ not in ("object", "Struct")]
    if issubclass(value, Exception):
        yield f"A {' and a '.join(f'`{base}`' for base in bases)}. {_text(value)}"
        return
    if issubclass(value, enum.Enum):
        yield _text(value)
        yield "\n".join(f"- `{name}.{one.name}`: `{one.value!r}`" for one in value) + "\n"
        return
    yield _signature(name, value)
    yield _text(value)
    for member, inside in vars(value).items():
        if member.startswith("_") or not (doc := inspect.getdoc(getattr(value, member))):
            continue
        if isinstance(inside, (property, cached_property)):
            yield f"- **`{member}`**: {_inline(_paragraphs(doc)[0])}\n"
        elif isinstance(inside, (classmethod, staticmethod)) or inspect.isfunction(inside):
            yield f"#### {name}.{member}\n"
            yield _signature(member, getattr(value, member))
            yield _text(getattr(value, member))


def _signature(name: str, value: object) -> str:
    returns = ""
    if inspect.isclass(value) and issubclass(value, Struct):
        words = list(_fields(value))
    else:
        if not callable(value):
            raise TypeError(f"{name} is neither a class nor a function")
        found = inspect.signature(value)
        words = list(_parameters(found.parameters.values()))
        if isinstance(found.return_annotation, str):
            returns = f" -> {found.return_annotation}"
    line = f"{name}({', '.join(words)}){returns}"
    if len(line) > _WIDEST:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"
    return f"```python\n{line}\n```\n"


def _parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    by_name = False
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not by_name:
            by_name = True
            yield "*"
        hint = "" if one.annotation is one.empty else _hint(one.annotation)
        default = "" if one.default is one.empty else _default(one.default, spaced=bool(hint))
        yield f"{'*' * (one.kind is one.VAR_POSITIONAL)}{one.name}{hint and f': {hint}'}{default}"


def _fields(record: type[Struct]) -> Iterator[str]:
    """The parameters of a record, whose hints would have to be resolved for a signature."""
    hints: dict[str, object] = {}
    for base in reversed(record.__mro__):
        hints |= getattr(base, "__annotations__", {})
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    for at, name in enumerate(names, len(defaults) - len(names)):
        has_default = at >= 0 and defaults[at] is not NODEFAULT
        yield f"{name}: {_hint(hints[name])}" + (
            _default(defaults[at], spaced=True) if has_default else ""
        )


def _hint(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "...")


def _default(value: object, *, spaced: bool) -> str:
    plain = isinstance(value, (str, int, float, bool, tuple)) or value is None
    empty = isinstance(value, (dict, MappingProxyType)) and not value
    shown = repr(value) if plain and not isinstance(value, enum.Enum) else "{}" if empty else "..."
    return f" = {shown}" if spaced else f"={shown}"


def _text(value: object) -> str:
    return "\n\n".join(_blocks(inspect.getdoc(value) or "")) + "\n"


def _paragraphs(doc: str) -> list[str]:
    return re.split(r"\n[ \t]*\n", doc.strip())


def _blocks(doc: str) -> Iterator[str]:
    """The paragraphs of a docstring as markdown."""
    for paragraph in _paragraphs(doc):
        lines = paragraph.split("\n")
        title = _SECTION.match(lines[0])
        if lines[0].startswith(">>> "):
            yield f"```pycon\n{paragraph}\n\n```"
        elif title is None:
            yield _inline(paragraph)
        else:
            yield f"**{title[1]}**"
            yield "\n".join(_items(lines[1:], named=title[1] != "Returns"))


def _items(lines: list[str], *, named: bool) -> Iterator[str]:
    """The entries of a section: each begins four spaces in, and goes on farther in."""
    entries: list[str] = []
    for line in lines:
        if line.startswith("     ") and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    for entry in entries:
        name, colon, said = entry.partition(": ")
        yield f"- `{name}`: {_inline(said)}" if named and colon else f"- {_inline(entry)}"


def _inline(text: str) -> str:
    text = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`").replace("  ", " ")
