"""The volumes of pods that end with them, below a folder, laid out as the kubelet does.

An ``emptyDir`` is at ``UID/volumes/kubernetes.io~empty-dir/NAME``: any user of the pod may write
there.  A ``downwardAPI`` volume is in ``kubernetes.io~downward-api`` beside, and only read.
The kernel's table of mounts says what is mounted, so an agent that was killed in the middle finds
what it left.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from pinfold.core.memory.hugepage_pools import size_text
from pinfold.core.pod.hugepages import MEDIUM_MEMORY, folder_name
from pinfold.core.pod.manifest.assigned_fields import Values, filled
from pinfold.core.pod.workload import DownwardAPI, EmptyDir
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.mounting import knows, mount, mounts_below, remount, unmount
from pinfold.linux.mounts import Mount
from pinfold.linux.swapped_folder import SwappedFile, swap
from pinfold.ports.volumes import ANY_NODE, VolumeError

_LAYOUT: Final = Path("volumes", "kubernetes.io~empty-dir")
_DOWNWARD: Final = Path("volumes", "kubernetes.io~downward-api")
_TOP: Final = "volumes"
_LONGEST: Final = 255
_PRIVATE: Final = 0o750
_SEEN: Final = 0o755
_OPEN: Final = 0o777
_OF_A_GROUP: Final = 0o2777
"""What is made in there has the group, too, as under a kubelet."""
_PASSABLE: Final = 0o011
_PAGES: Final = Path("/sys/kernel/mm/hugepages")
_HUGETLBFS: Final = "hugetlbfs"
_TMPFS: Final = "tmpfs"
_NO_SWAP: Final = "noswap"
_POLICY: Final = "mpol="
_FIRST_TOUCH: Final = "mpol=local"
"""The default cannot be had back: a remount with ``mpol=default`` changes nothing."""
_MAY_MOUNT: Final = (errno.EPERM, errno.EACCES)


class VolumeFolders:
    """Fulfils :class:`pinfold.ports.volumes.Volumes`; one object has ``root`` for itself.

    ``root`` is made when there is the first volume.  It may hold other files.
    """

    def __init__(self, root: Path) -> None:
        # The kernel's table has real paths.
        self._root = root.resolve()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def prepare(
        self, pod_uid: str, name: str, source: EmptyDir, nodes: CPUSet = ANY_NODE
    ) -> str:
        """See :meth:`pinfold.ports.volumes.Volumes.prepare`."""
        if source.problem:
            raise VolumeError(source.problem, "correct the manifest")
        folder = self._folder(pod_uid) / _LAYOUT
        if not name or "/" in name or name in (".", ".."):
            raise VolumeError(f"{name!r} is no name of a volume", "correct the manifest")
        path = folder / name
        async with self._locks[pod_uid]:
            await asyncio.to_thread(_make, self._root, path, source, nodes)
        return str(path)

    def bind(self, pod_uid: str, name: str, nodes: CPUSet) -> None:
        """See :meth:`pinfold.ports.volumes.Volumes.bind`."""
        path = self._folder(pod_uid) / _LAYOUT / name
        try:
            for found in mounts_below(path):
                if found.path == path and found.kind == _TMPFS:
                    _bind(found, nodes)
        except OSError as error:
            raise VolumeError(f"{path}: binding to NUMA nodes {nodes}: {error.strerror}") from None

    def project(self, pod_uid: str, name: str, source: DownwardAPI, values: Values) -> str:
        """See :meth:`pinfold.ports.volumes.Volumes.project`.

        It is done at once, so that nothing is made for a pod that has ended meanwhile.
        """
        path = self._folder(pod_uid) / _DOWNWARD / name
        files = {
            one.path: SwappedFile(filled(one.text, values).encode(), one.mode, source.group)
            for one in source.files
        }
        try:
            _make_above(self._root, path)
            if not path.is_dir():
                path.mkdir()
                path.chmod(_SEEN)
            swap(path, files)
            if source.for_users:
                _let_users_in(self._root, path)
        except OSError as error:
            raise _unwritten(path, error) from None
        return str(path)

    async def remove(self, pod_uid: str) -> None:
        """See :meth:`pinfold.ports.volumes.Volumes.remove`."""
        folder = self._find(pod_uid)
        if folder is None or not folder.is_dir():
            return
        async with self._locks[pod_uid]:
            await asyncio.to_thread(_remove, folder)
        self._locks.pop(pod_uid, None)

    async def pods(self) -> Collection[str]:
        """See :meth:`pinfold.ports.volumes.Volumes.pods`."""
        return await asyncio.to_thread(lambda: list(self._pods()))

    def _pods(self) -> Iterator[str]:
        try:
            entries = sorted(os.scandir(self._root), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise VolumeError(f"{self._root}: {error.strerror}") from None
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and Path(entry.path, _TOP).is_dir():
                yield unquote(entry.name, errors="surrogatepass")

    def _folder(self, pod_uid: str) -> Path:
        folder = self._find(pod_uid)
        if folder is None:
            raise VolumeError(
                f"pod uid {pod_uid[:40]!r}: no folder can have this name",
                "give the pod another metadata.uid",
            )
        return folder

    def _find(self, pod_uid: str) -> Path | None:
        name = quote(pod_uid, safe=":", errors="surrogatepass").replace(".", "%2E")
        return self._root / name if 0 < len(name) <= _LONGEST else None


def _make(root: Path, path: Path, source: EmptyDir, nodes: CPUSet) -> None:
    """Make a folder, and mount what belongs on it unless that is there."""
    kind, options = _filesystem(source)
    was_there = path.is_dir()
    try:
        _make_above(root, path)
        found = [one for one in mounts_below(path) if one.path == path]
        if kind is None:
            if found:
                raise VolumeError(f"{path}: a {found[-1].kind} is mounted there", "unmount it")
            _open_folder(path)
        elif not (found and _is_it(found[-1], kind, source)):
            for _ in found:
                unmount(path)
            _open_folder(path)
            try:
                _mount(kind, path, options)
            except BaseException:
                if not was_there:
                    path.rmdir()
                raise
        if kind == _TMPFS:
            _bind(mounts_below(path)[0], nodes)
        _let_in(root, path, source)
    except OSError as error:
        raise _failure(path, kind, source, error) from None


def _make_above(root: Path, path: Path) -> None:
    for parent in (root, path.parents[2], path.parents[1], path.parents[0]):
        parent.mkdir(mode=_PRIVATE, parents=parent == root, exist_ok=True)


def _open_folder(path: Path) -> None:
    if not path.is_dir():
        path.mkdir()
        # Past the umask: any user of the pod writes there.
        path.chmod(_OPEN)


def _let_in(root: Path, path: Path, source: EmptyDir) -> None:
    """Give a volume to the pod's group, and let its users get there; they see no other's names."""
    if source.group is not None:
        os.chown(path, -1, source.group)
        path.chmod(_OF_A_GROUP)
    if source.for_users:
        _let_users_in(root, path)


def _let_users_in(root: Path, path: Path) -> None:
    for parent in path.parents:
        if root in (parent, *parent.parents):
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | _PASSABLE)
        elif not parent.stat().st_mode & stat.S_IXOTH:
            raise VolumeError(
                f"{parent}: who is not root cannot get to the volumes below it",
                f"chmod o+x {parent}, as the systemd unit has it, or leave out runAsUser",
            )


def _filesystem(source: EmptyDir) -> tuple[str | None, list[str]]:
    """The file system, and its options: the first of them that the kernel takes."""
    size = "" if source.size is None else f",size={source.size}"
    if source.page_size is not None:
        if not (_PAGES / folder_name(source.page_size)).is_dir():
            have = sorted(entry.name for entry in _PAGES.iterdir()) if _PAGES.is_dir() else []
            raise VolumeError(
                f"this machine has no huge pages of {size_text(source.page_size)}",
                f"it has {', '.join(have)}" if have else "a kernel with hugetlbfs is needed",
            )
        return _HUGETLBFS, [f"pagesize={source.page_size},mode=0777{size}"]
    if source.medium == MEDIUM_MEMORY:
        # Only newer kernels can be told to keep it out of swap.
        return _TMPFS, [f"mode=0777{size},{_NO_SWAP}", f"mode=0777{size}"]
    return None, []


def _mount(kind: str, path: Path, choices: list[str]) -> None:
    for options in choices:
        try:
            mount(kind, path, options)
        except OSError as error:
            if error.errno != errno.EINVAL or options is choices[-1]:
                raise
        else:
            return


def _bind(found: Mount, nodes: CPUSet) -> None:
    """Have new files of a tmpfs be on NUMA nodes, unless they are; raises OSError.

    Source: the kernel's ``filesystems/tmpfs.rst``.
    """
    # A list of nodes has commas, as the options have; no other option begins with a digit.
    now = {one for one in found.options if one.startswith(_POLICY) or one[:1].isdigit()}
    wanted = f"{_POLICY}bind:{nodes}" if nodes else _FIRST_TOUCH
    if now == set(wanted.split(",")) or not (now or nodes):
        return
    # What cannot be changed has to be said again.
    kept = f"{_NO_SWAP}," if _NO_SWAP in found.options else ""
    try:
        remount(_TMPFS, found.path, f"{kept}{wanted}")
    except OSError as error:
        # A kernel without NUMA knows no policy, and of a node without memory none can be made.
        if error.errno != errno.EINVAL:
            raise


def _is_it(found: Mount, kind: str, source: EmptyDir) -> bool:
    if found.kind != kind:
        return False
    # The kernel writes 2M where 2Mi was asked for.
    wanted = source.page_size and f"pagesize={size_text(source.page_size).removesuffix('i')}"
    return not wanted or wanted in found.options


def _unwritten(path: Path, error: OSError) -> VolumeError:
    remedy = "make room on its disk, or let the agent write there"
    return VolumeError(f"{path}: {error.strerror}", remedy)


def _failure(path: Path, kind: str | None, source: EmptyDir, error: OSError) -> VolumeError:
    if kind is None:
        return _unwritten(path, error)
    problem = f"{path}: mounting {kind}: {error.strerror}"
    if error.errno in _MAY_MOUNT:
        return VolumeError(
            problem, f"a volume of medium {source.medium} needs root (CAP_SYS_ADMIN)"
        )
    if error.errno == errno.ENODEV or not knows(kind):
        return VolumeError(problem, f"the kernel has no {kind}")
    return VolumeError(problem)


def _remove(folder: Path) -> None:
    """Unmount what is below, the last first, then delete; never into what is still mounted."""
    place = folder
    try:
        for found in reversed(mounts_below(folder)):
            place = found.path
            unmount(found.path)
        left = mounts_below(folder)
        if left:
            raise VolumeError(f"{left[0].path}: a {left[0].kind} is still mounted there")
        place = folder
        if folder.is_dir():
            shutil.rmtree(folder)
    except OSError as error:
        where = error.filename or place
        raise VolumeError(
            f"{os.fsdecode(where)}: {error.strerror}", "it is tried again; unmount or delete it"
        ) from None
