"""One file for each pod in a folder, replaced atomically: readers see the old or the new content.

A file gets its content under a temporary name and is then renamed, so that inotify(7) reports
``IN_MOVED_TO`` with the file's name in the folder once for each change.  A watch on the file
itself would stay with the old file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.durable import replace
from pinfold.ports.errors import PortError

_SUFFIX: Final = ".json"
_TEMPORARY: Final = re.compile(r"\.[\w%~-]+\.json\.new", re.ASCII)
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_LONGEST: Final = 200
"""Bytes of a name without its suffixes; file systems take 255."""

_FOLDER_MODE: Final = 0o755
_FILE_MODE: Final = 0o644
_REMEDY: Final = "make room on its disk, let the agent write there, or choose another folder"


def file_name(pod_uid: str) -> str:
    """The name of a pod's file; no two uids have the same.

    Letters, digits, ``-`` and ``_`` are kept, other bytes of the UTF-8 text become ``%XX``.  Of a
    uid that is too long for a file name, the beginning is kept and its SHA-256 follows a ``~``.

    Raises:
        PortError: the uid is empty.
    """
    if not pod_uid:
        raise PortError("a pod without a uid has no file", "give the pod a metadata.uid")
    raw = pod_uid.encode(errors="surrogatepass")
    name = _UNSAFE.sub(lambda match: b"%%%02X" % ord(match[0]), raw).decode()
    if len(name) > _LONGEST:
        digest = hashlib.sha256(raw).hexdigest()
        name = f"{name[: _LONGEST - len(digest) - 1]}~{digest}"
    return name + _SUFFIX


class _Published(Struct, frozen=True):
    """What was written last, and how to tell that the file is still that one."""

    content: bytes
    signature: tuple[int, int, int, int]


class PodFileFolder:
    """A folder of pods' files; fulfils :class:`pinfold.ports.podfiles.PodFiles`.

    The files have mode 0644, the folder, which is made, 0755.  They are not flushed to the disk:
    after a power failure the agent reads each again, and replaces what is not as it should be.
    One agent writes to a folder.

    Raises:
        PortError: it cannot be made, or what an interrupted agent left there cannot be removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._published: dict[str, _Published] = {}
        try:
            if not folder.is_dir():
                folder.mkdir(parents=True)
                folder.chmod(_FOLDER_MODE)
            for path in folder.iterdir():
                if _TEMPORARY.fullmatch(path.name):
                    path.unlink()
        except OSError as error:
            raise _error("prepare", folder, error) from None

    async def publish(self, pod_uid: str, document: str) -> None:
        """See :class:`pinfold.ports.podfiles.PodFiles`; what others changed is written anew."""
        path = self.folder / file_name(pod_uid)
        try:
            content = document.encode()
        except UnicodeEncodeError as error:
            raise PortError(f"the content of {path} is no Unicode text: {error}") from None
        try:
            if self._is_current(path, content):
                return
            self._replace(path, content)
        except OSError as error:
            self._published.pop(path.name, None)
            raise _error("write", path, error) from None

    async def retract(self, pod_uid: str) -> None:
        """See :class:`pinfold.ports.podfiles.PodFiles`."""
        self._remove(self.folder / file_name(pod_uid))

    def retain(self, pod_uids: Iterable[str]) -> None:
        """Remove the files of all other pods, which ended in our absence; raises PortError."""
        kept = {file_name(uid) for uid in pod_uids}
        try:
            paths = sorted(self.folder.iterdir())
        except OSError as error:
            raise _error("read", self.folder, error) from None
        for path in paths:
            if path.suffix == _SUFFIX and path.name not in kept:
                self._remove(path)

    def _is_current(self, path: Path, content: bytes) -> bool:
        known = self._published.get(path.name)
        try:
            if known is not None:
                return known.content == content and known.signature == _signature(path.lstat())
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # Whatever stands in the way, the replacement shows whether it matters.
            return False
        with open(descriptor, "rb") as file:  # noqa: PTH123 - Path cannot take a descriptor
            status = os.fstat(descriptor)
            is_current = status.st_mode & 0o777 == _FILE_MODE and file.read() == content
        if is_current:
            self._published[path.name] = _Published(content, _signature(status))
        return is_current

    def _replace(self, path: Path, content: bytes) -> None:
        # The next agent writes them anew: that they are whole is enough.
        status = replace(path, content, mode=_FILE_MODE, sync=False)
        self._published[path.name] = _Published(content, _signature(status))

    def _remove(self, path: Path) -> None:
        self._published.pop(path.name, None)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _error("remove", path, error) from None


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def _error(verb: str, path: Path, error: OSError) -> PortError:
    return PortError(f"cannot {verb} {path}: {error.strerror or error}", _REMEDY)
