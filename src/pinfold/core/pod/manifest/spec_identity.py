"""When two manifests of one name are the same pod, and where they differ.

Same is what comes to the same: another order of keys, ``1000m`` for ``1``, a default that is
written out, an empty list, and fields that are not in force here make no other pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import Pod, guaranteed_cpus
from pinfold.core.pod.workload import Workload
from pinfold.core.values.quantity import Quantity, QuantityError

_CPUS: Final = re.compile(r"spec\.containers\[(\d+)\]\.resources\.(?:limits|requests)\.cpu")
_AMOUNTS: Final = ("limits", "requests", "overhead", "sizeLimit")
_IN_FORCE: Final = ("annotations", "labels")
_MOST_LOOKED_AT: Final = 64
"""For each of them the manifest is read once more."""
_NOTHING: Final[tuple[object, ...]] = (None, "", [], {})
"""What the API server takes for a field that is not there."""


class Difference(NamedTuple):
    """A field that two manifests have otherwise; ``path`` as the API server writes it."""

    path: str
    before: object
    after: object

    def __str__(self) -> str:
        if isinstance(self.before, dict | list) or isinstance(self.after, dict | list):
            return self.path
        return f"{self.path} ({_shown(self.before)} -> {_shown(self.after)})"


class _Found(NamedTuple):
    """The same, with the place step by step: the keys of mappings, the indices of lists."""

    steps: tuple[str | int, ...]
    before: object
    after: object


class Resized(NamedTuple):
    """A container that is to have another number of CPUs of its own."""

    container: str
    cpus: int


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The fields in which a pod would be another one; none where it is the same.

    Args:
        before: the Pod that was admitted.
        after: a Pod of the same name.

    Raises:
        PodError: ``after`` is no valid pod.
    """
    wanted = _workload(after, before, admitted=False)
    if _workload(before, before, admitted=True) == wanted:
        return ()
    found = list(_differing(_compared(before), _compared(after), ()))

    def matters(one: _Found) -> bool:
        if one.before not in _NOTHING and one.after not in _NOTHING:
            return True
        try:
            return _workload(_with(after, one.steps, one.before), before, admitted=False) != wanted
        except PodError:
            return True

    # What is written out, and comes to the same without, is told only where nothing else is.
    first, rest = found[:_MOST_LOOKED_AT], found[_MOST_LOOKED_AT:]
    left = [*filter(matters, first), *rest] or found
    told = tuple(Difference(_path(one.steps), one.before, one.after) for one in left)
    return told or (Difference("spec", {}, {}),)


def resized(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Resized, ...]:
    """The containers to resize, where only the numbers of their own CPUs differ; else none.

    Arguments and errors are those of :func:`differences`.
    """
    indices: set[int] = set()
    for one in differences(before, after):
        match = _CPUS.fullmatch(one.path)
        if match is None:
            return ()
        indices.add(int(match[1]))
    old = _workload(before, before, admitted=True).pod
    new = _workload(after, before, admitted=False).pod
    counts = [(_own(old, index), _own(new, index)) for index in sorted(indices)]
    if not all(map(all, counts)):
        return ()
    names = [new.containers[index].name for index in sorted(indices)]
    return tuple(Resized(name, count) for name, (_, count) in zip(names, counts, strict=True))


def _own(pod: Pod, index: int) -> int:
    """How many CPUs a container has to itself; 0: none, or a mixed one, of which it is a part."""
    container = pod.containers[index]
    return 0 if container.name in pod.mixed else guaranteed_cpus(pod, container)


def _workload(manifest: Mapping[str, Any], known: Mapping[str, Any], *, admitted: bool) -> Workload:
    """What it comes to, under the uid of the one that is known."""
    metadata = {**manifest["metadata"], "uid": known["metadata"].get("uid")}
    workload = workload_from_api({**manifest, "metadata": metadata}, admitted=admitted)
    return replace(workload, pod=replace(workload.pod, creation_timestamp=None))


def _compared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    metadata = manifest["metadata"]
    said = {key: metadata[key] for key in _IN_FORCE if key in metadata}
    return {"metadata": said, "spec": manifest.get("spec")}


def _differing(
    before: object, after: object, steps: tuple[str | int, ...], key: str = ""
) -> Iterator[_Found]:
    if isinstance(before, dict) and isinstance(after, dict):
        below = key if key in _AMOUNTS else ""
        if key == "resources":
            before, after = _with_requests(before), _with_requests(after)
        for name in dict.fromkeys((*before, *after)):
            yield from _differing(before.get(name), after.get(name), (*steps, name), below or name)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differing(one, other, (*steps, index))
    elif not _same(before, after, amounts=key in _AMOUNTS):
        yield _Found(steps, before, after)


def _with_requests(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Resources with the requests that limits stand for, as the API server fills them in."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return dict(resources)
    return {**resources, "requests": {**limits, **requests}}


def _path(steps: tuple[str | int, ...]) -> str:
    """A place as the API server writes it."""
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in steps)
    return text.removeprefix(".")


def _with(holder: Any, steps: tuple[str | int, ...], value: object) -> Any:  # noqa: ANN401 - any part of a manifest
    """The same with another value at a place; None: without it."""
    step, *below = steps
    other = value if not below else _with(holder[step], tuple(below), value)
    if isinstance(holder, list):
        return [other if index == step else one for index, one in enumerate(holder)]
    kept = {key: one for key, one in holder.items() if key != step}
    return kept if other is None else {**kept, step: other}


def _same(before: object, after: object, *, amounts: bool) -> bool:
    if before in _NOTHING and after in _NOTHING:
        return True
    if amounts and (amount := _quantity(before)) is not None:
        return amount == _quantity(after)
    return before == after


def _quantity(value: object) -> Quantity | None:
    try:
        return Quantity.parse(str(value))
    except QuantityError:
        return None


def _shown(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
