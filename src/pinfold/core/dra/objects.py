"""Objects and where they were read, and what is at a path of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.core.classes.api import GROUP as CLASSES_GROUP
from pinfold.core.dra.names import GROUP

_LIST: Final = "List"
_MOST_LISTS: Final = 5

Manifest = Mapping[str, Any]


class ConvertError(ValueError):
    """What cannot be converted; the message names the place, the object and the field."""


class InvalidError(ConvertError):
    """An object that is wrong whatever it is to become."""


class Located(Struct, frozen=True):
    """An object, and where it was read."""

    where: str
    manifest: Manifest

    @property
    def kind(self) -> str:
        """Its kind, after its API group where that is not the one of pods: ``group/kind``."""
        version = self.manifest.get("apiVersion")
        group, slash, _ = version.partition("/") if isinstance(version, str) else ("", "", "")
        kind = str(self.manifest.get("kind"))
        return f"{group}/{kind}" if slash and group in (CLASSES_GROUP, GROUP) else kind


def located(where: str, content: object, depth: int = 0) -> Iterable[Located]:
    """Yield an object, or those of a list; raises InvalidError."""
    kind = content.get("kind") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or not isinstance(kind, str) or not kind:
        raise InvalidError(f"{where}: not a Kubernetes object (no mapping with a kind)")
    items = content.get("items")
    if not kind.endswith(_LIST) or not isinstance(items, list):
        yield Located(where, content)
        return
    if depth == _MOST_LISTS:
        raise InvalidError(f"{where}: lists within lists within lists; write them out")
    for at, item in enumerate(items):
        if isinstance(item, Mapping) and "kind" not in item and kind != _LIST:
            said = {"apiVersion": content.get("apiVersion"), "kind": kind.removesuffix(_LIST)}
            item = {**said, **item}  # noqa: PLW2901 - the same object, with what its list says
        yield from located(f"{where}: items[{at}]", item, depth + 1)


def at_path(manifest: Manifest, path: tuple[str, ...]) -> Manifest | None:
    """What is at a path, if that is a mapping."""
    holder: Any = manifest
    for key in path:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else None


def replaced(manifest: Manifest, path: tuple[str, ...], found: Manifest) -> Manifest:
    """The manifest with another mapping at a path."""
    if not path:
        return found
    return {**manifest, path[0]: replaced(manifest[path[0]], path[1:], found)}
