"""A file system of the tests, as ``/dev/fuse`` has it: its files are what somebody else answers.

It speaks the kernel's own protocol (``include/uapi/linux/fuse.h``), as far as folders and small
files need it.  Nothing is cached, so each call of a program is one of these.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from pinfold.linux.mounting import mount, unmount

DEVICE: Final = Path("/dev/fuse")

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _MKDIR, _RMDIR = 1, 2, 3, 4, 9, 11
_OPEN, _READ, _WRITE, _STATFS, _RELEASE, _FLUSH = 14, 15, 16, 17, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS = 26, 27, 28, 29, 34
_INTERRUPT, _DESTROY, _BATCH_FORGET = 36, 38, 42

_SILENT: Final = frozenset({_FORGET, _BATCH_FORGET, _INTERRUPT})
"""What the kernel wants no answer to."""
_EMPTY: Final = frozenset({_ACCESS, _FLUSH, _RELEASE, _RELEASEDIR, _DESTROY})

_IN: Final = struct.Struct("<IIQQIIIHH")
_OUT: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<6Q10I")
_DIRECT_IO: Final = 1
_BUFFER: Final = 1 << 17
_ROOT: Final = 1


class Files(Protocol):
    """Who answers; paths are relative (``""``, ``a/b``), and refusals are OSErrors."""

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder (True) or a file (False); raises FileNotFoundError."""

    def names(self, path: str) -> Sequence[str]:
        """What is in a folder."""

    def read(self, path: str) -> str:
        """What is in a file."""

    def write(self, path: str, text: str) -> None:
        """Somebody has written this, in one call."""

    def make(self, path: str) -> None:
        """Make a folder."""

    def remove(self, path: str) -> None:
        """Remove a folder."""


def why_no_fuse() -> str:
    """Why there can be no such file system here; "" where there can be."""
    if os.geteuid() != 0:
        return "only root mounts"
    return "" if DEVICE.exists() else "there is no /dev/fuse"


@contextmanager
def served(files: Files, folder: Path) -> Iterator[None]:
    """Mount it on a folder, and answer until the end of the block."""
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    server = _Server(files, device)
    thread = threading.Thread(target=server.run, name="fuse", daemon=True)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
        mount("fuse", folder, options)
        thread.start()
        try:
            yield
        finally:
            unmount(folder)
            thread.join()
    finally:
        os.close(device)


class _Server:
    def __init__(self, files: Files, device: int) -> None:
        self._files = files
        self._device = device
        self._paths = {_ROOT: ""}
        self._ids = {"": _ROOT}
        self._opened: dict[int, bytes] = {}

    def run(self) -> None:
        """Answer until it is unmounted."""
        while True:
            try:
                data = os.read(self._device, _BUFFER)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            _, opcode, unique, node, *_ = _IN.unpack_from(data)
            if opcode in _SILENT:
                continue
            try:
                number, body = 0, self._answer(opcode, node, data[_IN.size :])
            except OSError as error:
                number, body = error.errno or errno.EIO, b""
            with suppress(FileNotFoundError):  # whoever asked is gone
                os.write(self._device, _OUT.pack(_OUT.size + len(body), -number, unique) + body)

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == _INIT:
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 16, 12, 65536, 1, 16, 0, 0, *[0] * 7)
        if opcode in _EMPTY:
            return b""
        if opcode == _STATFS:
            return struct.pack("<5Q4I6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        path = self._paths[node]
        if opcode in (_GETATTR, _SETATTR):
            return struct.pack("<QII", 0, 0, 0) + self._attributes(path)
        if opcode == _LOOKUP:
            return self._entry(_below(path, _name(body)))
        if opcode == _MKDIR:
            made = _below(path, _name(body[8:]))
            self._files.make(made)
            return self._entry(made)
        if opcode == _RMDIR:
            self._files.remove(_below(path, _name(body)))
            return b""
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _DIRECT_IO, 0)
        if opcode == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._files.read(path).encode()[offset : offset + size]
        if opcode == _WRITE:
            size = struct.unpack_from("<QQI", body)[2]
            self._files.write(path, body[40 : 40 + size].decode())
            return struct.pack("<II", size, 0)
        if opcode == _READDIR:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._listing(path, offset, size)
        raise OSError(errno.ENOSYS, "not in this file system")

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(path)
        return struct.pack("<QQQQII", self._id(path), 0, 0, 0, 0, 0) + attributes

    def _id(self, path: str) -> int:
        if path not in self._ids:
            number = self._ids[path] = len(self._ids) + 1
            self._paths[number] = path
        return self._ids[path]

    def _attributes(self, path: str) -> bytes:
        folder = self._files.is_folder(path)
        mode = stat.S_IFDIR | 0o755 if folder else stat.S_IFREG | 0o644
        inner = (
            [name for name in self._files.names(path) if self._is_folder(path, name)]
            if folder
            else []
        )
        links = 2 + len(inner) if folder else 1
        return _ATTR.pack(self._id(path), 0, 0, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)

    def _is_folder(self, path: str, name: str) -> bool:
        return self._files.is_folder(_below(path, name))

    def _listing(self, path: str, offset: int, size: int) -> bytes:
        found = b""
        for at, name in enumerate(self._files.names(path)):
            if at < offset:
                continue
            kind = stat.S_IFDIR if self._is_folder(path, name) else stat.S_IFREG
            raw = name.encode()
            entry = struct.pack("<QQII", self._id(_below(path, name)), at + 1, len(raw), kind >> 12)
            entry += raw + b"\0" * (-len(raw) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found


def _name(body: bytes) -> str:
    return body.split(b"\0", 1)[0].decode()


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
