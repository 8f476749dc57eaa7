"""The watched folder of manifests (the kubelet's ``staticPodPath``)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from pinfold.adapters.kubernetes.files import ManifestError, small_file_documents
from pinfold.core.pod.manifest.size import MANIFEST_BYTES

_BESIDE: Final = ("ResourceQuota", "Namespace")
"""What may stand beside the pods."""
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_SOURCE: Final = "kubernetes.io/config.source"

Signature = tuple[int, int, int]
"""inode, size, time of the last change in nanoseconds."""


class StaticPod(Struct, frozen=True):
    """One pod of the folder: its manifest with a uid, and the file that it is from."""

    manifest: Mapping[str, Any]
    uid: str
    file: Path


class FolderContent(Struct, frozen=True):
    """What one file asks for: pods, and the manifests of objects beside them."""

    pods: tuple[StaticPod, ...]
    objects: tuple[Mapping[str, Any], ...] = ()


class ManifestFolder(Struct):
    """A folder, or one file, of Pod manifests.

    A pod's uid is made of its file and its content, so that a changed manifest is another pod, as
    with a kubelet.
    """

    path: Path
    _seen: dict[Path, Signature] | None = None
    _held: dict[Path, FolderContent] = field(default_factory=dict)

    def changes(self) -> bool:
        """Whether something has changed, or it was never read; soon done; raises as `read`."""
        return dict(self._files()) != self._seen

    def read(self) -> dict[Path, str]:
        """Read what has changed, which may take a while.

        Returns:
            The files that cannot be used, each with the reason; what such a file held before stays.

        Raises:
            ManifestError: nobody knows what is in the folder; what was there stays.
        """
        found = dict(self._files())
        seen = self._seen or {}
        changed = {path for path, signature in found.items() if seen.get(path) != signature}
        held = {path: one for path, one in self._held.items() if path in found}
        problems = {}
        for path in changed:
            try:
                held[path] = _read(path)
            except ManifestError as error:
                problems[path] = str(error)
        self._held, self._seen = held, found
        return problems

    @property
    def pods(self) -> dict[str, StaticPod]:
        """The pods that the folder asks for, by uid."""
        return {pod.uid: pod for path in sorted(self._held) for pod in self._held[path].pods}

    @property
    def objects(self) -> list[tuple[Path, Mapping[str, Any]]]:
        """The manifests of the objects beside them, each with its file."""
        return [(path, one) for path in sorted(self._held) for one in self._held[path].objects]

    def is_known(self, file: Path) -> bool:
        """Whether it is known which pods a file asks for: it was read once, or is not there."""
        return file in self._held or file not in (self._seen or {})

    def _files(self) -> list[tuple[Path, Signature]]:
        try:
            if not stat.S_ISDIR(self.path.stat().st_mode):
                return list(_found(self.path))
            with os.scandir(self.path) as entries:
                names = [entry.path for entry in entries if _is_manifest(entry.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ManifestError(f"{self.path}: {error.strerror or error}") from None
        return [found for name in names for found in _found(Path(name))]


def _is_manifest(name: str) -> bool:
    """As the kubelet: files that begin with a dot are not for it."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")


def _found(path: Path) -> Iterator[tuple[Path, Signature]]:
    """A regular file, or a link to one; nothing where it has gone, or is another thing.

    Raises:
        ManifestError: it is not known what it is.
    """
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return
        raise ManifestError(f"{path}: {error.strerror or error}") from None
    # Neither a FIFO, which is waited for, nor a device, which has no end.
    if stat.S_ISREG(status.st_mode):
        yield path, (status.st_ino, status.st_size, status.st_mtime_ns)


def _read(path: Path) -> FolderContent:
    pods, objects, empty = [], [], True
    for document in small_file_documents(path, MANIFEST_BYTES):
        content, empty = document.content, False
        if isinstance(content, dict) and content.get("kind") in _BESIDE:
            objects.append(content)
            continue
        if not isinstance(content, dict) or content.get("kind") != "Pod":
            kind = content.get("kind") if isinstance(content, dict) else None
            raise ManifestError(f"{path}: line {document.line}: only pods run here, not {kind!r}")
        pods.append(_static(path, content))
    if empty:
        # Who writes a file in place empties it first; and to end a pod, its file is removed.
        raise ManifestError(f"{path}: there is no pod in it; to end those that it had, remove it")
    return FolderContent(tuple(pods), tuple(objects))


def _static(path: Path, content: dict[str, Any]) -> StaticPod:
    metadata = content.get("metadata")
    if not isinstance(metadata, dict):
        raise ManifestError(f"{path}: metadata is missing")
    text = json.dumps([str(path), content], sort_keys=True, default=str)
    uid = hashlib.sha256(text.encode()).hexdigest()[:32]
    annotations = metadata.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    marked = {**metadata, "uid": uid, "annotations": {**annotations, _SOURCE: "file"}}
    return StaticPod({**content, "metadata": marked}, uid, path)
