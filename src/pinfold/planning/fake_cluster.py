"""What an API server stores, in memory: objects with their versions, and watches of them."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.ports.kubernetes import KubernetesError, Object, Resource, refusal

Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""

_UIDS: Final = uuid.UUID("6f1d5dbb-4e17-4c11-9a3c-5a2f1c5a7f11")
_CUSTOM: Final = "."
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results."
)


class Event(Struct, frozen=True):
    """Something that a watch shows; a bookmark is for all resources, and has no object.

    ``before`` is the object as it was, where it was there.
    """

    version: int
    type: str
    key: Key | None
    object: Object
    before: Object | None = None

    def among(self, selects: Callable[[Object], bool]) -> Event | None:
        """What a watch of some objects shows of it; None: nothing.

        Of one that belongs to them no more it shows the end, as it was.
        """
        if self.key is None:
            return self
        was = self.before is not None and selects(self.before)
        if self.type != "DELETED" and selects(self.object):
            return replace(self, type="MODIFIED" if was else "ADDED")
        if not was or self.before is None:
            return None
        version = {"resourceVersion": str(self.version)}
        metadata = {**self.before["metadata"], **version}
        return replace(self, type="DELETED", object={**self.before, "metadata": metadata})


class Chunk(Struct, frozen=True):
    """A part of a list; ``continued`` is the token for the next one, "" where there is none."""

    objects: Sequence[Object]
    version: str
    continued: str
    remaining: int


class Backup(Struct, frozen=True):
    """What a server had at a version."""

    version: int
    objects: Mapping[Key, Object]


class FakeCluster:
    """The objects of one API server.

    Args:
        now: the clock, in seconds since 1970; None: the system's.
    """

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now or (lambda: datetime.now(UTC).timestamp())
        self._objects: dict[Key, Object] = {}
        self._history: list[Event] = []
        self._compacted = 0
        self._snapshots: dict[tuple[int, Resource], list[tuple[Key, Object]]] = {}
        self._news = asyncio.Event()
        self._disconnects = 0
        self._made = 0
        self.version = 1
        self.without_status: set[tuple[str, str]] = set()
        """Resources (group, plural) that have no subresource ``status``."""

    # ------------------------------------------------------------------------------ objects

    def read(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """An object; raises NotFoundError."""
        return _copy(self._found(_key(resource, namespace, name), resource))

    def prepared(self, resource: Resource, created: Mapping[str, Any]) -> Object:
        """An object as it would be created: with a name, a uid and a time."""
        made = _copy(created)
        metadata = made.setdefault("metadata", {})
        self._made += 1
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{self._made:05x}"
        if not metadata.get("name"):
            problem = "metadata.name: Required value: name or generateName is required"
            raise _invalid(resource, "", problem)
        metadata["uid"] = str(uuid.uuid5(_UIDS, str(self._made)))
        metadata["creationTimestamp"] = self.timestamp()
        for field in ("resourceVersion", "deletionTimestamp"):
            metadata.pop(field, None)
        made.setdefault("apiVersion", resource.api_version)
        made.setdefault("kind", resource.kind)
        return made

    def create(self, resource: Resource, created: Mapping[str, Any], *, uid: str = "") -> Object:
        """Store a new object; with the uid of one that was :meth:`prepared`, as it is."""
        made = _copy(created) if uid else self.prepared(resource, created)
        metadata = made["metadata"]
        key = _key(resource, metadata.get("namespace", ""), metadata["name"])
        if key in self._objects:
            raise refusal(409, "AlreadyExists", f'{_qualified(resource)} "{key[3]}" already exists')
        if resource.is_namespaced is not bool(key[2]):
            raise _invalid(resource, metadata["name"], f"metadata.namespace: {key[2]!r}")
        return self._store("ADDED", key, made)

    def update(
        self, resource: Resource, changed: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """Replace an object, or its subresource; a stale ``resourceVersion`` is a conflict."""
        before = self.check_version(resource, changed)
        key, had = _key_of(resource, changed), before["metadata"]
        after = self._replaced(resource, before, _copy(changed), subresource)
        # What the server keeps itself.
        for field in ("uid", "creationTimestamp", "resourceVersion", "deletionTimestamp"):
            after["metadata"].pop(field, None)
            if field in had:
                after["metadata"][field] = had[field]
        if after == before:
            return _copy(before)
        if after.get("spec") != before.get("spec") and "generation" in had:
            after["metadata"]["generation"] = had["generation"] + 1
        if had.get("deletionTimestamp") and not after["metadata"].get("finalizers"):
            return self._store("DELETED", key, after)
        return self._store("MODIFIED", key, after)

    def check_version(self, resource: Resource, changed: Mapping[str, Any]) -> Object:
        """The object that is to be replaced; a stale ``resourceVersion`` is a conflict."""
        metadata, key = changed["metadata"], _key_of(resource, changed)
        before = self._found(key, resource)
        had = before["metadata"]
        version = metadata.get("resourceVersion") or had["resourceVersion"]
        if version != had["resourceVersion"] or (metadata.get("uid") or had["uid"]) != had["uid"]:
            raise refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {_qualified(resource)} "{key[3]}": the object '
                "has been modified; please apply your changes to the latest version and try again",
            )
        return before

    def delete(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Remove an object, or note that it is to go where finalizers are on it."""
        key = _key(resource, namespace, name)
        before = _copy(self._found(key, resource))
        if before["metadata"].get("finalizers"):
            if before["metadata"].get("deletionTimestamp"):
                return before
            before["metadata"]["deletionTimestamp"] = self.timestamp()
            return self._store("MODIFIED", key, before)
        if resource.kind == "Pod":
            # A kubelet gets time to end one; what is told last is that there is none left.
            before["metadata"] |= {
                "deletionTimestamp": self.timestamp(),
                "deletionGracePeriodSeconds": 0,
            }
        return self._store("DELETED", key, before)

    def bind(self, resource: Resource, binding: Mapping[str, Any]) -> Object:
        """Assign a pod to a node (``pods/NAME/binding``), with the binding's annotations."""
        wanted = binding["metadata"]
        key = _key(resource, wanted.get("namespace", ""), wanted["name"])
        pod = _copy(self._found(key, resource))
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        problem = ""
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            problem = f"the UID in the precondition ({wanted['uid']}) is not {metadata['uid']}"
        elif metadata.get("deletionTimestamp"):
            problem = f"pod {key[3]} is being deleted, cannot be assigned to a host"
        elif node:
            problem = f'pod {key[3]} is already assigned to node "{node}"'
        if problem:
            raise refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on pods/binding "{key[3]}": {problem}',
            )
        pod["spec"]["nodeName"] = binding["target"]["name"]
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            **(wanted.get("annotations") or {}),
        }
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [one for one in conditions if one.get("type") != "PodScheduled"]
        conditions.append({"type": "PodScheduled", "status": "True"})
        self._store("MODIFIED", key, pod)
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "code": 201,
        }

    def chunk(
        self, resource: Resource, namespace: str = "", *, limit: int = 0, continued: str = ""
    ) -> Chunk:
        """A part of a list, all of one moment; raises GoneError for a token that is too old."""
        if continued:
            version, start = _read_token(continued)
            if (version, resource) not in self._snapshots:
                raise refusal(410, "Expired", _TOO_OLD)
        else:
            version, start = self.version, 0
        listed = self._snapshots[version, resource] if continued else self._all(resource)
        wanted = [one for key, one in listed if not namespace or key[2] == namespace]
        end = start + limit if limit else len(wanted)
        token = ""
        if end < len(wanted):
            self._snapshots[version, resource] = listed
            token = base64.urlsafe_b64encode(f"{version}:{end}".encode()).decode()
        part = [_copy(one) for one in wanted[start:end]]
        return Chunk(part, str(version), token, max(0, len(wanted) - end))

    def timestamp(self) -> str:
        """Now, as the API writes it."""
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # ------------------------------------------------------------------------------ watches

    async def watch(
        self, resource: Resource, version: str, namespace: str = ""
    ) -> AsyncIterator[Event]:
        """What has changed since a version, until :meth:`disconnect`; raises GoneError."""
        seen, disconnects = int(version or self.version), self._disconnects
        if seen < self._compacted:
            raise _too_old(seen, self._compacted)
        while disconnects == self._disconnects:
            news = self._news
            for event in self._history[self._after(seen) :]:
                seen = max(seen, event.version)
                if event.key is None or (
                    event.key[:2] == (resource.group, resource.plural)
                    and namespace in ("", event.key[2])
                ):
                    yield event
            if seen < self._compacted:
                raise _too_old(seen, self._compacted)
            if self._after(seen) == len(self._history):
                await news.wait()

    def compact(self) -> None:
        """Forget what was; watches that are behind, and parts of lists, are too old."""
        self._compacted = self.version
        self._history.clear()
        self._snapshots.clear()
        self._tell()

    def bookmark(self) -> None:
        """Tell every watch how far it is."""
        self.version += 1  # a number of its own, so that each watch shows it once
        self._history.append(Event(self.version, "BOOKMARK", None, {}))
        self._tell()

    def disconnect(self) -> None:
        """End every watch that runs now."""
        self._disconnects += 1
        self._tell()

    def backup(self) -> Backup:
        """All objects, and the version of now."""
        return Backup(self.version, {key: _copy(one) for key, one in self._objects.items()})

    def restore(self, backup: Backup) -> None:
        """Be as it was then, as of a backup of etcd; watches end, and lists begun are forgotten."""
        self._objects = {key: _copy(one) for key, one in backup.objects.items()}
        self.version = self._compacted = backup.version
        self._history.clear()
        self._snapshots.clear()
        self.disconnect()

    # ------------------------------------------------------------------------------ inside

    def _after(self, seen: int) -> int:
        low, high = 0, len(self._history)
        while low < high:
            middle = (low + high) // 2
            if self._history[middle].version <= seen:
                low = middle + 1
            else:
                high = middle
        return low

    def _all(self, resource: Resource) -> list[tuple[Key, Object]]:
        of = (resource.group, resource.plural)
        return sorted(
            ((key, one) for key, one in self._objects.items() if key[:2] == of),
            key=lambda pair: pair[0],
        )

    def _found(self, key: Key, resource: Resource) -> Object:
        found = self._objects.get(key)
        if found is None:
            raise refusal(404, "NotFound", f'{_qualified(resource)} "{key[3]}" not found')
        return found

    def _replaced(
        self, resource: Resource, before: Object, changed: Object, subresource: str
    ) -> Object:
        if (resource.group, resource.plural) in self.without_status:
            return changed
        if not subresource:
            changed.pop("status", None)
            return changed | ({"status": before["status"]} if "status" in before else {})
        after = _copy(before) | {"status": changed.get("status", {})}
        if _is_built_in(resource):
            # Their status is written with labels and annotations; a custom resource's is not.
            after["metadata"] = changed["metadata"]
        return after

    def _store(self, kind: str, key: Key, stored: Object) -> Object:
        self.version += 1
        stored["metadata"]["resourceVersion"] = str(self.version)
        before = self._objects.get(key)
        if kind == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = stored
        self._history.append(Event(self.version, kind, key, stored, before))
        self._tell()
        return _copy(stored)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _read_token(continued: str) -> tuple[int, int]:
    try:
        at, _, done = base64.urlsafe_b64decode(continued).decode().partition(":")
        return int(at), int(done)
    except ValueError as error:
        problem = f"invalid continue token: continue key is not valid: {error}"
        raise refusal(400, "BadRequest", problem) from None


def _qualified(resource: Resource) -> str:
    """As errors name it."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _is_built_in(resource: Resource) -> bool:
    return _CUSTOM not in resource.group or resource.group.endswith(".k8s.io")


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return resource.group, resource.plural, namespace, name


def _key_of(resource: Resource, given: Mapping[str, Any]) -> Key:
    metadata = given["metadata"]
    return _key(resource, metadata.get("namespace", ""), metadata["name"])


def _too_old(seen: int, compacted: int) -> KubernetesError:
    return refusal(410, "Expired", f"too old resource version: {seen} ({compacted})")


def _invalid(resource: Resource, name: str, problem: str) -> KubernetesError:
    return refusal(422, "Invalid", f'{resource.kind} "{name}" is invalid: {problem}')


def _copy(copied: Mapping[str, Any]) -> Object:
    return {key: _deep(one) for key, one in copied.items()}


def _deep(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, Mapping):
        return _copy(value)
    if isinstance(value, list):
        return [_deep(one) for one in value]
    return value
