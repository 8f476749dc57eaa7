"""A folder for each container with exclusive CPUs, in which it reads what it has and is to have.

``assigned.cpuset``, ``assigned.memset`` and ``assignment.json`` change all at once
(:mod:`pinfold.linux.swapped_folder`); into ``ack/generation`` the container writes, whoever it runs
as, and nothing else of the folder is writable for it.  What it writes there is cut when it is
looked at, and fills no disk but one for that (:mod:`pinfold.adapters.podfiles.small_disk`).  A
container sees the folder at :data:`pinfold.core.pod.workload.ASSIGNMENT_FOLDER`, a process at its
path on the machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from pinfold.adapters.podfiles.acknowledgements import Acknowledgements, cut, number_in
from pinfold.adapters.podfiles.small_disk import mount_at, unmount_from
from pinfold.core.pod.workload import ACKNOWLEDGEMENT
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents import assignment as document
from pinfold.linux.swapped_folder import SwappedFile, swap
from pinfold.ports.errors import ContainerKey, NoRoomError
from pinfold.ports.tellers import Assigned, Assignment, TellingError

_JSON: Final = "assignment.json"
_FOLDER_MODE: Final = 0o755
_OPEN: Final = 0o666
_LONGEST: Final = 255
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REMEDY: Final = "make room on its disk, or let the agent write there"


class AssignmentFolders:
    """Fulfils :class:`pinfold.ports.tellers.Teller`; one object has ``root`` for itself.

    A container's folder outlives it, until its pod is forgotten: in there is what it was told last.
    It is not brought to the disk, for no container outlives the machine.

    Args:
        root: made with the first folder, ``root/POD-UID/CONTAINER``.
        report: takes a problem for the operator (pod None).
    """

    def __init__(self, root: Path, report: Callable[[str | None, str], None]) -> None:
        self.root = root
        self._report = report
        self._acknowledgements = Acknowledgements()

    def folder(self, owner: ContainerKey) -> str:
        """See :meth:`pinfold.ports.tellers.Teller.folder`."""
        return str(self._folder(owner))

    def _folder(self, owner: ContainerKey) -> Path:
        return self._of_pod(owner.pod_uid) / quote(owner.name, safe="")

    async def told(self, owner: ContainerKey) -> Assignment | None:
        """See :meth:`pinfold.ports.tellers.Teller.told`."""
        path = self._folder(owner) / _JSON
        try:
            read = msgspec.json.decode(path.read_bytes(), type=document.Assignment)
            return _from_document(read)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _error("read", path, error) from None
        except (msgspec.DecodeError, CPUSetError, ValueError):
            return None  # a power failure, or somebody else

    def is_told(self, owner: ContainerKey) -> bool:
        """See :meth:`pinfold.ports.tellers.Teller.is_told`."""
        folder = self._folder(owner)
        return (folder / _JSON).exists() and os.path.lexists(folder / ACKNOWLEDGEMENT)

    async def tell(self, owner: ContainerKey, news: Assignment) -> None:
        """See :meth:`pinfold.ports.tellers.Teller.tell`."""
        folder = self._folder(owner)
        text = msgspec.json.encode(_document(news))
        files = {
            "assigned.cpuset": str(news.coming.cpus).encode(),
            "assigned.memset": str(news.coming.mems).encode(),
            _JSON: text,
        }
        swapped = {name: SwappedFile(content) for name, content in files.items()}
        self._cut(folder / ACKNOWLEDGEMENT)
        try:
            _make(self.root, folder)
            try:
                swap(folder, swapped)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._cut(*self.root.glob(f"*/*/{ACKNOWLEDGEMENT}"))
                swap(folder, swapped)
        except OSError as error:
            raise _error("write", folder, error) from None

    async def acknowledged(self, owner: ContainerKey, generation: int) -> None:
        """See :meth:`pinfold.ports.tellers.Teller.acknowledged`."""
        path = self._folder(owner) / ACKNOWLEDGEMENT
        has_said = False
        try:
            with self._acknowledgements.watched(path.parent) as changed:
                while True:
                    await changed.wait()
                    changed.clear()
                    self._cut(path)
                    found = number_in(path)
                    if found == generation:
                        return
                    if found is not None and found > generation and not has_said:
                        has_said = True
                        self._report(
                            None,
                            f"container {owner} acknowledges generation {found}, and was told "
                            f"{generation}: that counts for nothing",
                        )
        except NoRoomError as error:
            raise TellingError(error.problem, error.remedy) from None

    async def forget(self, pod_uid: str) -> None:
        """See :meth:`pinfold.ports.tellers.Teller.forget`."""
        folder = self._of_pod(pod_uid)
        if folder.is_dir():
            await asyncio.to_thread(_remove, folder)
        unmount_from(self.root)

    async def retain(self, pod_uids: Collection[str]) -> Sequence[str]:
        """See :meth:`pinfold.ports.tellers.Teller.retain`."""
        problems = []
        try:
            paths = sorted(self.root.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (str(_error("read", self.root, error)),)
        for path in paths:
            if unquote(path.name, errors="surrogatepass") not in pod_uids:
                try:
                    await asyncio.to_thread(_remove, path)
                except TellingError as error:
                    problems.append(str(error))
        unmount_from(self.root)
        return problems

    def _cut(self, *paths: Path) -> None:
        for path in paths:
            if cut(path):
                problem = f"{path} was larger than any number, and is empty now"
                self._report(None, f"{problem}: its container fills a disk")

    def _of_pod(self, pod_uid: str) -> Path:
        name = quote(pod_uid, safe=":", errors="surrogatepass").replace(".", "%2E")
        if not 0 < len(name) <= _LONGEST:
            raise TellingError(
                f"pod uid {pod_uid[:40]!r}: no folder can have this name",
                "give the pod another metadata.uid",
            )
        return self.root / name


def _make(root: Path, folder: Path) -> None:
    """Make a container's folder, with what it writes; what is there stays."""
    acknowledged = folder / ACKNOWLEDGEMENT
    for one in (root, folder.parent, folder, acknowledged.parent):
        if not one.is_dir():
            one.mkdir(parents=one is root)
            one.chmod(_FOLDER_MODE)
        if one is root:
            mount_at(root)
    try:
        mode = acknowledged.lstat().st_mode
    except FileNotFoundError:
        acknowledged.touch(exist_ok=False)
        mode = acknowledged.lstat().st_mode
    # Past the umask: any user of the container writes there.
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) != _OPEN:
        acknowledged.chmod(_OPEN)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError) as error:
        raise TellingError(f"{folder} was not removed: {error}", "delete it") from None


def _document(news: Assignment) -> document.Assignment:
    def told(one: Assigned) -> document.Assigned:
        return document.Assigned(cpus=str(one.cpus), mems=str(one.mems))

    deadline = news.deadline
    return document.Assignment(
        generation=news.generation,
        current=told(news.current),
        coming=told(news.coming),
        previous=None if news.previous is None else told(news.previous),
        reason=news.reason,
        deadline=None if deadline is None else _rfc3339(deadline),
    )


def _from_document(read: document.Assignment) -> Assignment:
    def told(one: document.Assigned) -> Assigned:
        return Assigned(CPUSet.parse(one.cpus), CPUSet.parse(one.mems))

    deadline = read.deadline
    return Assignment(
        read.generation,
        told(read.current),
        told(read.coming),
        None if read.previous is None else told(read.previous),
        read.reason,
        None if deadline is None else datetime.fromisoformat(deadline).timestamp(),
    )


def _rfc3339(moment: float) -> str:
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def _error(verb: str, path: Path, error: OSError) -> TellingError:
    return TellingError(f"cannot {verb} {path}: {error.strerror or error}", _REMEDY)
