"""Objects that an agent keeps beside its pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

from pinfold.core.classes.names import with_class_quota
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import text_of
from pinfold.core.quota.quota import quota_from_api
from pinfold.core.quota.validation import validate_quota
from pinfold.node.books import Books
from pinfold.node.pod_table import UnknownPodError
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.quotas import RESOURCE_QUOTA
from pinfold.ports.records import ObjectKey, ObjectRecord

Checked: TypeAlias = tuple[ObjectKey, Mapping[str, Any]]
Check: TypeAlias = Callable[[Mapping[str, Any], Collection[str]], Checked]


def _quota(manifest: Mapping[str, Any], classes: Collection[str]) -> Checked:
    named = with_class_quota(manifest, classes)
    quota = quota_from_api(named)
    validate_quota(quota)
    return ObjectKey(RESOURCE_QUOTA, quota.namespace, quota.name), named


KINDS: Final[Mapping[str, Check]] = {RESOURCE_QUOTA: _quota}
"""Of each kind what checks a manifest, and says which object it is and what is kept of it.

They are given the names of the classes that there are, and raise PodError.
"""


class Objects:
    """Puts objects into the books, where they hold from the next admission on."""

    def __init__(self, books: Books) -> None:
        self._books = books

    async def apply(
        self, manifest: Mapping[str, Any], *, source: str, caller: Caller = NOBODY
    ) -> ObjectRecord:
        """Keep an object, in the place of one of its name.

        Raises:
            PodError: it is of no kind that is kept here, or not a valid one.
            StoreError: it cannot be written down; nothing was changed.
        """
        classes = self._books.view.state.devices.classes.names
        record = object_record(manifest, source, classes)
        async with self._books.change() as draft:
            self._books.expect_room()
            caller.begin()
            draft.put_object(record.key, record)
        return record

    async def delete(self, *keys: ObjectKey, caller: Caller = NOBODY) -> None:
        """Forget objects.

        Raises:
            UnknownPodError: there is no such object.
            StoreError: it cannot be written down; nothing was changed.
        """
        async with self._books.change() as draft:
            for key in keys:
                if key not in self._books.view.objects:
                    raise UnknownPodError(f"there is no {key.kind} {key.namespace}/{key.name}")
            caller.begin()
            for key in keys:
                draft.put_object(key, None)

    async def follow(self, wanted: Iterable[ObjectRecord], source: str) -> None:
        """Make the objects of a source those that are wanted, in one change; raises StoreError."""
        there = {one.key: one for one in wanted}
        held = self._books.view.objects
        gone = [key for key, one in held.items() if one.source == source and key not in there]
        changed = [one for key, one in there.items() if held.get(key) != one]
        if not gone and not changed:
            return
        async with self._books.change() as draft:
            for key in gone:
                draft.put_object(key, None)
            for one in changed:
                draft.put_object(one.key, one)


def object_record(
    manifest: Mapping[str, Any], source: str, classes: Collection[str] = ()
) -> ObjectRecord:
    """What is kept of a manifest; raises PodError where it is none of an object of ours."""
    kind = text_of(manifest.get("kind"), "kind") or ""
    if kind not in KINDS:
        raise PodError("kind", f"Unsupported value: {kind[:80]!r}: {', '.join(KINDS)}")
    key, named = KINDS[kind](manifest, classes)
    return ObjectRecord(key, json.dumps(named), source)
