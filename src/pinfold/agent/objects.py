"""Objects that an agent keeps beside its pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import structlog

from pinfold.core.classes.names import with_class_quota
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import text_of
from pinfold.core.pod.manifest.workload_fields import Finding
from pinfold.core.quota.remarks import namespace_findings, quota_findings, uncounted
from pinfold.core.quota.resource_list import exceeded
from pinfold.core.quota.validation import namespace_name, valid_quota
from pinfold.documents.history import QuotaChanged
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.quotas import RESOURCE_QUOTA, in_use_of
from pinfold.ports.records import AppliedObject, ObjectKey, ObjectRecord

API: Final = "api"
"""The source of what came by the API; any other is a file of the watched folder."""

NAMESPACE: Final = "Namespace"
_SHOWN: Final = 5

log = structlog.get_logger("pinfold")

Checked: TypeAlias = tuple[ObjectKey, Mapping[str, Any] | None, Iterable[str]]
Check: TypeAlias = Callable[[Mapping[str, Any], Collection[str]], Checked]


def _quota(manifest: Mapping[str, Any], classes: Collection[str]) -> Checked:
    named = with_class_quota(manifest, classes)
    quota = valid_quota(named)
    _refuse_unknown(quota_findings(manifest))
    return ObjectKey(RESOURCE_QUOTA, quota.namespace, quota.name), named, uncounted(quota)


def _namespace(manifest: Mapping[str, Any], _classes: Collection[str]) -> Checked:
    name = namespace_name(manifest)
    _refuse_unknown(namespace_findings(manifest))
    return ObjectKey(NAMESPACE, "", name), None, ()


def _refuse_unknown(findings: Iterable[Finding]) -> None:
    for one in findings:
        raise PodError(one.path, one.problem)


KINDS: Final[Mapping[str, Check]] = {RESOURCE_QUOTA: _quota, NAMESPACE: _namespace}
"""Of each kind what checks a manifest, and says which object it is, what is kept of it (nothing of
what needs no making) and what may not be meant so.

They are given the names of the classes that there are, and raise PodError.
"""


class Objects:
    """Puts objects into the books, where they hold from the next admission on.

    Each has one keeper: the API, or a file.  What another keeps is not written over.
    """

    def __init__(self, books: Books) -> None:
        self._books = books

    async def apply(self, manifest: Mapping[str, Any], *, caller: Caller = NOBODY) -> AppliedObject:
        """Keep an object, in the place of one of its name.

        Raises:
            PodError: it is of no kind that is kept here, or not a valid one.
            NameTakenError: a file of the folder has one of its name.
            StoreError: it cannot be written down; nothing was changed.
        """
        key, record, warnings = checked(manifest, API, self._books.view.state.devices.classes.names)
        if record is not None:
            async with self._books.change() as draft:
                self._books.expect_room()
                self._refuse_foreign(key)
                caller.begin()
                beyond = self._put(draft, key, record)
            warnings = (*warnings, *_warning(beyond))
        return AppliedObject(key, warnings)

    async def delete(self, *keys: ObjectKey, caller: Caller = NOBODY) -> None:
        """Forget objects.

        Raises:
            UnknownPodError: there is no such object.
            NameTakenError: it is from a file of the folder.
            StoreError: it cannot be written down; nothing was changed.
        """
        async with self._books.change() as draft:
            for key in keys:
                if key not in self._books.view.objects:
                    raise UnknownPodError(_not_there(key, self._books.view.objects))
                self._refuse_foreign(key)
            caller.begin()
            for key in keys:
                self._put(draft, key, None)

    def _refuse_foreign(self, key: ObjectKey) -> None:
        held = self._books.view.objects.get(key)
        if held is not None and held.source != API:
            raise NameTakenError(
                f"{key.kind} {key.namespace}/{key.name} is from {held.source}: change it there"
            )

    async def follow(self, wanted: Iterable[ObjectRecord]) -> None:
        """Make the objects of files those that are wanted, in one change; raises StoreError.

        Of whichever file: an agent watches one folder, and may have watched another before.
        """
        there = {one.key: one for one in wanted}
        held = self._books.view.objects
        gone = [key for key, one in held.items() if one.source != API and key not in there]
        changed = [one for key, one in there.items() if held.get(key) != one]
        if not gone and not changed:
            return
        async with self._books.change() as draft:
            for key in gone:
                self._put(draft, key, None)
            for one in changed:
                self._put(draft, one.key, one)
        for key in gone:
            name = f"{key.namespace}/{key.name}"
            log.info("forgotten", kind=key.kind, name=name, file=held[key].source)

    def _put(self, draft: Draft, key: ObjectKey, record: ObjectRecord | None) -> Sequence[str]:
        """Draft it, with an entry of the history where that changes anything.

        Returns:
            Of what more is in use already than a quota allows.
        """
        view = self._books.view
        before, clock = view.objects.get(key), self._books.observers.clock
        draft.put_object(key, record)
        if key.kind != RESOURCE_QUOTA:
            return ()
        if record is None:
            self._books.counters.quota_refusals.pop(f"{key.namespace}/{key.name}", None)
        quota = None if record is None else in_use_of(view, record.manifest, clock)
        beyond = () if quota is None else exceeded(quota.used, quota.hard)
        if record != before:
            changed = "applied" if before is None else "changed"
            source = record or before
            told = QuotaChanged(
                quota=f"{key.namespace}/{key.name}",
                change="deleted" if record is None else changed,
                source="" if source is None else source.source,
                hard={} if quota is None else {k: str(v) for k, v in sorted(quota.hard.items())},
                exceeded=beyond,
            )
            draft.note("quota", document=told)
        return beyond


def _warning(beyond: Sequence[str]) -> Iterator[str]:
    if beyond:
        yield f"more is in use already of {', '.join(beyond)}: nobody is ended, nobody else let in"


def checked(
    manifest: Mapping[str, Any], source: str, classes: Collection[str] = ()
) -> tuple[ObjectKey, ObjectRecord | None, tuple[str, ...]]:
    """Which object a manifest is, what is kept of it, and what may not be meant so.

    Raises:
        PodError: it is none of an object of ours, or not a valid one.
    """
    kind = text_of(manifest.get("kind"), "kind") or ""
    if kind not in KINDS:
        raise PodError("kind", f"Unsupported value: {kind[:80]!r}: {', '.join(KINDS)}")
    key, kept, warnings = KINDS[kind](manifest, classes)
    record = None if kept is None else ObjectRecord(key, json.dumps(kept), source)
    return key, record, tuple(warnings)


def _not_there(key: ObjectKey, objects: Collection[ObjectKey]) -> str:
    named = f"there is no {key.kind} {key.namespace}/{key.name}"
    same = [f"{one.namespace}/{one.name}" for one in objects if one[0] == key[0]]
    meant = [one for one in same if one.endswith(f"/{key.name}")] or same
    return f"{named}; there is {', '.join(sorted(meant)[:_SHOWN])}" if meant else named
