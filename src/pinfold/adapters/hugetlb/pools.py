"""Reads and sets the kernel's pools of huge pages, per NUMA node, through sysfs.

The kernel grants what it can and says so only in the number that it shows afterwards, so every
write is read back.  A pool told to keep fewer pages than are in use keeps them as surplus; that is
never wanted here, and undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pinfold.adapters.hugetlb.sysfs import (
    MACHINE,
    NODES,
    HugePagePoolError,
    pool_folders,
    read_number,
    write_number,
)
from pinfold.core.memory.hugepage_pools import (
    Pool,
    even_shares,
    released_shares,
    size_text,
    unused,
)
from pinfold.core.pod.hugepages import folder_name

_COMPACT: Final = "proc/sys/vm/compact_memory"

Pools = dict[int | None, Pool]
"""The pools of one page size, by node."""


class HugePagePools:
    """The pools of this machine.

    ``root`` is the folder that ``sys`` and ``proc`` are in: another one where the host's are
    mounted elsewhere, as in a container.  ``write`` is what takes a number to a file.
    """

    def __init__(
        self, root: Path = Path("/"), write: Callable[[Path, int], None] = write_number
    ) -> None:
        self._root = root
        self._write = write

    def read(self) -> list[Pool]:
        """Every pool, by node and size.

        Raises:
            HugePagePoolError: the kernel has no huge pages, or a file is no number.
        """
        folders = list(pool_folders(self._root))
        if not folders:
            raise HugePagePoolError(
                f"{self._root / MACHINE}: the kernel has no huge pages",
                "a kernel with CONFIG_HUGETLBFS is needed",
            )
        found = [self._pool(node, size, folder) for node, size, folder in folders]
        return sorted(found, key=lambda pool: (-1 if pool.node is None else pool.node, pool.size))

    def of_size(self, size: int, node: int | None = None) -> Pools:
        """The pools of a page size, of all nodes or of one.

        Raises:
            HugePagePoolError: as :meth:`read`; no such size or node.
        """
        pools = self.read()
        sizes = sorted({pool.size for pool in pools})
        if size not in sizes:
            have = ", ".join(map(size_text, sizes))
            raise HugePagePoolError(
                f"this machine has no huge pages of {size_text(size)}", f"it has {have}"
            )
        found = {pool.node: pool for pool in pools if pool.size == size}
        if node is None:
            return found
        if node not in found:
            have = ", ".join(str(known) for known in found if known is not None) or "none"
            raise HugePagePoolError(
                f"there is no NUMA node {node} with huge pages", f"the nodes are {have}"
            )
        return {node: found[node]}

    def spare(self, size: int) -> int:
        """The free pages of a size, on the whole machine, that no mapping was promised.

        Raises:
            HugePagePoolError: as :meth:`of_size`.
        """
        free = sum(pool.free for pool in self.of_size(size).values())
        file = self._root / MACHINE / folder_name(size) / "resv_hugepages"
        return free - (read_number(file) if file.exists() else 0)

    def compact(self) -> None:
        """Have the kernel put free memory together, so that more huge pages fit.

        Raises:
            HugePagePoolError: not as root, or this kernel cannot.
        """
        self._write(self._root / _COMPACT, 1)

    def allocate(
        self, before: Pools, count: int, *, exact: bool = False, best_effort: bool = False
    ) -> Pools:
        """Add ``count`` pages to pools of one size; the pools afterwards.

        Args:
            before: the pools that may grow, as just read.
            count: pages that are added in all, evenly over the nodes.
            exact: a node that lacks memory is not made up for by others.
            best_effort: keep what was granted, where it is less.

        Raises:
            HugePagePoolError: less was granted (and given back), or not as root.
        """
        self._refuse_impossible(before, count)
        wanted = even_shares(count, list(before))
        with self._undoing(before):
            after = self._grown(before, wanted)
            missing = count - _gained(before, after)
            if missing and not exact:
                for node, pool in before.items():
                    if missing and after[node].kept - pool.kept >= wanted[node]:
                        wanted[node] += missing
                        after |= self._grown({node: pool}, {node: wanted[node]})
                        missing = count - _gained(before, after)
            if missing and (not best_effort or missing == count):
                raise _short(before, after, count)
        return after

    def release(self, before: Pools, count: int) -> Pools:
        """Give ``count`` pages of pools of one size back to the kernel; the pools afterwards.

        Raises:
            HugePagePoolError: fewer are unused, some came into use just now, or not as root.
        """
        size = next(iter(before.values())).size
        idle = unused(before.values(), self.spare(size))
        if count > idle:
            used = sum(pool.in_use for pool in before.values())
            total = sum(pool.total for pool in before.values())
            raise HugePagePoolError(
                f"{count} pages of {size_text(size)} cannot be released: of {total} pages "
                f"{used} are in use and {idle} can be given back",
                "end what uses them, or release fewer",
            )
        with self._undoing(before):
            for node, pages in released_shares(before.values(), count).items():
                self._keep(before[node], before[node].kept - pages)
            after = {node: self._again(pool) for node, pool in before.items()}
            taken = [
                pool
                for node, pool in after.items()
                if (pool.surplus or 0) > (before[node].surplus or 0)
            ]
            if taken:
                raise HugePagePoolError(
                    f"pages of {size_text(size)} on {taken[0].place} came into use meanwhile",
                    "nothing was released; try again",
                )
        return after

    # -------------------------------------------------------------------------------------- parts

    def _folder(self, pool: Pool) -> Path:
        name = folder_name(pool.size)
        if pool.node is None:
            return self._root / MACHINE / name
        return self._root / NODES / f"node{pool.node}" / "hugepages" / name

    def _pool(self, node: int | None, size: int, folder: Path) -> Pool:
        total, free, surplus = (
            read_number(folder / f"{what}_hugepages") for what in ("nr", "free", "surplus")
        )
        return Pool(node, size, total, free, surplus)

    def _again(self, pool: Pool) -> Pool:
        return self._pool(pool.node, pool.size, self._folder(pool))

    def _keep(self, pool: Pool, pages: int) -> None:
        self._write(self._folder(pool) / "nr_hugepages", pages)

    def _grown(self, before: Pools, wanted: Mapping[int | None, int]) -> Pools:
        for node, pages in wanted.items():
            if pages:
                self._keep(before[node], before[node].kept + pages)
        return {node: self._again(before[node]) for node in wanted}

    @contextmanager
    def _undoing(self, before: Pools) -> Iterator[None]:
        """Put the former numbers back when the body fails, or somebody presses Ctrl-C."""
        try:
            yield
        except BaseException as error:
            problems = list(self._undo(before))
            if problems and isinstance(error, HugePagePoolError):
                raise HugePagePoolError(
                    f"{error.problem}; putting the former number back failed, too: {problems[0]}",
                    error.remedy,
                ) from None
            raise

    def _undo(self, before: Pools) -> Iterator[str]:
        for pool in before.values():
            try:
                if self._again(pool).kept != pool.kept:
                    self._keep(pool, pool.kept)
                left = self._again(pool).kept
            except HugePagePoolError as error:
                yield error.problem
            else:
                if left != pool.kept:
                    yield f"{pool.place} keeps {left} pages instead of {pool.kept}"

    def _refuse_impossible(self, before: Pools, count: int) -> None:
        """The kernel would push everything out of memory before it says no."""
        size = next(iter(before.values())).size
        pools = self.read()
        if {pool.node for pool in pools} <= before.keys():
            # Of a machine whose memory was made smaller, a node's own number may be too low.
            place, memory = "this machine", self._memory("proc")
        else:
            parts = [self._memory(f"{NODES}/node{node}") for node in before]
            place, memory = next(iter(before.values())).place, sum(parts)
            if not all(parts):
                return
        taken = sum(pool.total * pool.size for pool in pools if pool.node in before)
        if memory and count * size > memory - taken:
            raise HugePagePoolError(
                f"{count} pages of {size_text(size)} are {count * size >> 20} MiB, but {place} has "
                f"{memory >> 20} MiB, {taken >> 20} MiB of them in huge pages already",
                "ask for fewer pages",
            )

    def _memory(self, place: str) -> int:
        """Bytes of memory there, 0 where it is not known."""
        with suppress(OSError, UnicodeDecodeError):
            text = (self._root / place / "meminfo").read_text()
            match = re.search(r"MemTotal:\s+([0-9]{1,19}) kB", text)
            return int(match[1]) << 10 if match else 0
        return 0


def _gained(before: Pools, after: Pools) -> int:
    return sum(after[node].kept - pool.kept for node, pool in before.items())


def _short(before: Pools, after: Pools, count: int) -> HugePagePoolError:
    size = next(iter(before.values())).size
    granted = ", ".join(
        f"{after[node].kept - pool.kept} on {pool.place}" for node, pool in before.items()
    )
    smaller = "" if size <= 2 << 20 else " or take a smaller size,"
    return HugePagePoolError(
        f"the kernel granted {_gained(before, after)} of {count} pages of {size_text(size)} "
        f"({granted}); they were given back",
        "memory is fragmented or in use: try --compact, allocate at boot "
        f"(hugepagesz={size_text(size).removesuffix('i')} hugepages={count}),{smaller} "
        "or keep what there is with --best-effort",
    )
