"""The objects of the watched folder: quotas are in force before any of its pods comes in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from pinfold.adapters.kubernetes.manifest_folder import ManifestFolder, StaticPod
from pinfold.agent.objects import API, Objects, checked
from pinfold.core.pod.api import PodError, described
from pinfold.node.books import Books
from pinfold.node.pods.quotas import RESOURCE_QUOTA
from pinfold.ports.records import ObjectKey, ObjectRecord

_MOST_TOLD: Final = 3

log = structlog.get_logger("pinfold")


class FolderObjects:
    """Makes the objects of a folder those that hold, and says which of its pods have to wait.

    A quota that cannot be used limits nobody.  So the pods that it would limit are held back: those
    of its file, and of its namespace.
    """

    def __init__(self, folder: ManifestFolder, books: Books) -> None:
        self._folder = folder
        self._books = books
        self._objects = Objects(books)
        self._held_files: Collection[Path] = ()
        self._held_namespaces: Collection[str] = ()
        self._told: frozenset[str] = frozenset()
        self._seen: object = None
        self.problems: Mapping[Path, str] = {}

    @property
    def is_behind(self) -> bool:
        """Whether what is in the way of an object may be gone."""
        return bool(self.problems) and self._seen is not self._books.view.objects

    def holds_back(self, pod: StaticPod) -> bool:
        """Whether a pod has to wait for a quota that cannot be used."""
        metadata = pod.manifest.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        return pod.file in self._held_files or (namespace or "default") in self._held_namespaces

    def problem(self) -> str:
        """What of the folder cannot be used; "" where all can."""
        told = [f"{file}: {problem}" for file, problem in self.problems.items()]
        more = f"; and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        return "; ".join(told[:_MOST_TOLD]) + more

    async def follow(self, *, all_known: bool) -> None:
        """Make them hold; raises StoreError.

        While one cannot be used, or not ``all_known`` of the files are, none is forgotten.
        """
        kept, problems = self._read()
        if problems or not all_known:
            objects = self._books.view.objects
            kept = {key: one for key, one in objects.items() if one.source != API} | kept
        await self._objects.follow(kept.values())
        self.problems, self._seen = problems, self._books.view.objects

    def _read(self) -> tuple[dict[ObjectKey, ObjectRecord], dict[Path, str]]:
        view = self._books.view
        classes = view.state.devices.classes.names
        kept: dict[ObjectKey, ObjectRecord] = {}
        problems: dict[Path, str] = {}
        files, namespaces, said = set[Path](), set[str](), list[tuple[str, Path, str]]()
        for file, manifest in self._folder.objects:
            try:
                key, one, warnings = checked(manifest, str(file), classes)
            except PodError as error:
                problems[file] = f"{described(manifest)}: {error}"
                if _named(manifest) not in view.objects:
                    files.add(file)
                    namespaces.update(_limited(manifest))
                continue
            said += [("warning", file, f"{key.name}: {warning}") for warning in warnings]
            if one is None:
                continue
            there = view.objects.get(key)
            if there is not None and there.source == API:
                problems[file] = (
                    f"{key.kind} {key.namespace}/{key.name} has come by the API already: delete "
                    "that one, or take it out of the file"
                )
            elif kept.setdefault(key, one) is not one:
                problems[file] = f"there is a {key.kind} {key.name} in another file already"
        self._held_files, self._held_namespaces = files, namespaces
        self._tell([*said, *(("error", *row) for row in problems.items())])
        return kept, problems

    def _tell(self, said: Iterable[tuple[str, Path, str]]) -> None:
        """Log what is new, once."""
        now = set()
        for level, file, problem in said:
            line = f"{file}: {problem}"
            now.add(line)
            if line not in self._told:
                held = {"pods": "held back"} if file in self._held_files else {}
                getattr(log, level)("manifest", file=str(file), problem=problem, **held)
        self._told = frozenset(now)


def _named(manifest: Mapping[str, Any]) -> ObjectKey | None:
    """Which object it would be, as far as that can be known."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    namespace, name = metadata.get("namespace") or "default", metadata.get("name")
    return ObjectKey(str(manifest.get("kind")), str(namespace), str(name))


def _limited(manifest: Mapping[str, Any]) -> Iterable[str]:
    """The namespace whose pods it would limit, as far as that can be known."""
    key = _named(manifest)
    return () if key is None or key.kind != RESOURCE_QUOTA else (key.namespace,)
