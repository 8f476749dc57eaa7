"""Where the log of a container is, and how much there may be of it: the kubelet's layout.

Below a root (the kubelet's is ``/var/log/pods``) the log of one attempt is
``NAMESPACE_NAME_UID/CONTAINER/ATTEMPT.log``; what was rotated away lies beside it, with a number
that grows: ``ATTEMPT.log.00000001``.  Each line is the CRI's: a time, ``stdout`` or ``stderr``,
``F`` (or ``P``: the line goes on), and the text.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec

_SUFFIX: Final = ".log"
_LONGEST: Final = 255
_KEPT: Final = 50
"""Characters; none has more than four bytes."""

_REMEDY: Final = "make room on the disk, or give another state folder"


class LogLimits(Struct, frozen=True):
    """How much is kept of one attempt: ``files`` of ``size`` bytes, the one written to included.

    The kubelet's ``containerLogMaxSize`` and ``containerLogMaxFiles``.
    """

    size: int = 10 * 1024 * 1024
    files: int = 5

    @property
    def most(self) -> int:
        """Bytes of all files together."""
        return self.size * self.files


def pod_folder(root: Path, namespace: str, name: str, uid: str) -> Path:
    """The folder of a pod's logs."""
    return root / file_name(f"{namespace}_{name}_{uid}")


def file_name(text: str) -> str:
    """A name for a folder; where the file system has none so long, the beginning and a checksum."""
    raw = text.encode(errors="backslashreplace")
    name = raw.decode().replace("/", "_").replace("\0", "_")
    if len(name.encode()) <= _LONGEST:
        return name
    return f"{name[:_KEPT]}~{hashlib.sha256(raw).hexdigest()[:32]}"


def log_file(root: Path, spec: ContainerSpec) -> Path:
    """The log of the attempt that a specification is for."""
    folder = pod_folder(root, spec.namespace, spec.pod_name, spec.key.pod_uid)
    return folder / spec.key.name / f"{spec.attempt}{_SUFFIX}"


def prepare(file: Path) -> None:
    """Make the folder of an attempt's log, and remove what is older than the attempt before.

    Raises:
        RuntimeFailedError: it cannot be made.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeFailedError(f"cannot make {file.parent}: {error.strerror}", _REMEDY) from None
    remove_older(file)


def remove_older(file: Path) -> None:
    """Remove the logs of all attempts before the one before this."""
    number = file.name.removesuffix(_SUFFIX)
    current = int(number) if number.isdecimal() else 0
    for attempt in attempts(file.parent):
        if attempt < current - 1:
            for old in parts(file.parent / f"{attempt}{_SUFFIX}"):
                with suppress(OSError):
                    old.unlink()


def put_aside(file: Path, limits: LogLimits) -> Path:
    """Give a log that has become too large the next number, and remove the oldest before that.

    Whoever writes has to open it anew.

    Returns:
        Its new name, from which it can be given the old one.

    Raises:
        OSError: it cannot be; it has its name, then.
    """
    old = list(rotated(file))
    number = int(old[-1].name.rpartition(".")[2]) + 1 if old else 1
    for path in old[: max(len(old) - (limits.files - 2), 0)]:
        path.unlink()
    return file.rename(file.with_name(f"{file.name}.{number:08d}"))


def attempts(folder: Path) -> list[int]:
    """The attempts of which there is a log in a container's folder, in order."""
    found = set()
    with suppress(OSError):
        for entry in folder.iterdir():
            number = entry.name.partition(_SUFFIX)[0]
            if number.isdecimal() and entry.name[len(number) :].startswith(_SUFFIX):
                found.add(int(number))
    return sorted(found)


def parts(file: Path) -> list[Path]:
    """The files of one attempt's log, oldest first; the last one is written to."""
    return [*rotated(file), *([file] if file.exists() else [])]


def rotated(file: Path) -> Iterator[Path]:
    """What was rotated away of one attempt's log, oldest first."""
    with suppress(OSError):
        yield from sorted(
            entry
            for entry in file.parent.iterdir()
            if entry.name.startswith(f"{file.name}.")
            and entry.name[len(file.name) + 1 :].isdecimal()
        )


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, if there is one; raises RuntimeFailedError."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RuntimeFailedError(f"{folder} cannot be removed: {error}") from None
