"""The kernel's pools of huge pages: what is in them, and from which nodes pages come or go.

A pool has pages of one size on one NUMA node.  *Surplus* pages are those that the kernel took
beyond the number it was told to keep; *reserved* ones are promised to a mapping that has not
touched them yet, and are free until then (kernel ``admin-guide/mm/hugetlbpage``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from pinfold.core.machine.machine import Machine
from pinfold.core.pod.hugepages import HugePagesError, resource_name
from pinfold.core.pod.pod import HUGEPAGES_PREFIX
from pinfold.core.values.quantity import Format, Quantity, QuantityError

_SIZE: Final = re.compile(r"(?:hugepages-)?([0-9]{1,12})(?:([KkMGT])i?B?)?", re.ASCII)
_BYTES: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([KkMGTPE])i?B?", re.ASCII)
_POWERS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class Pool(Struct, frozen=True):
    """Pages of ``size`` bytes on a node; ``node`` None is a machine whose kernel tells no nodes.

    ``total`` counts the surplus too; ``surplus`` None is not known (another machine's record).
    """

    node: int | None
    size: int
    total: int
    free: int
    surplus: int | None = 0

    @property
    def kept(self) -> int:
        """The number that the kernel was told to keep (``nr_hugepages`` as it is written)."""
        return self.total - (self.surplus or 0)

    @property
    def in_use(self) -> int:
        """Pages that somebody has."""
        return self.total - self.free

    @property
    def place(self) -> str:
        """``node 1``, or ``this machine``."""
        return "this machine" if self.node is None else f"node {self.node}"


def recorded_pools(machine: Machine) -> list[Pool]:
    """The pools that a machine's description tells of, by node where it knows that."""
    by_node = [(None if n.synthetic else n.id, n.hugepages) for n in machine.numa_nodes]
    if not any(found for _, found in by_node):
        by_node = [(None, machine.hugepages)]
    return [
        Pool(node, size, pool.total, pool.free, None)
        for node, found in by_node
        for size, pool in sorted(found.items())
    ]


def size_text(size: int) -> str:
    """A page size as the API writes it, such as ``2Mi``."""
    return resource_name(size).removeprefix(HUGEPAGES_PREFIX)


def parse_page_size(text: str) -> int:
    """Read a page size: ``2Mi``, ``2MB``, ``2M``, ``2048kB`` or ``hugepages-2Mi``.

    Every unit is a power of 1024, as the kernel's are.

    Raises:
        HugePagesError: no size.
    """
    match = _SIZE.fullmatch(text)
    size = int(match[1]) << _POWERS[(match[2] or "").upper()] if match else 0
    if size <= 0:
        raise HugePagesError(f"{text[:80]!r} is no page size; write 2Mi or 1Gi")
    if size.bit_count() != 1:
        raise HugePagesError(f"{text} is no page size of any kernel: all are powers of two")
    return size


def parse_amount(text: str, size: int) -> int:
    """Read a number of pages: a plain number counts pages, one with a unit (``4Gi``) bytes.

    Units are powers of 1024 here, too, with and without an ``i``: ``4G`` of pages of ``2M`` are as
    many as ``4Gi`` of ``2Mi``.

    Raises:
        HugePagesError: neither, or bytes that are no whole pages.
    """
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    match = _BYTES.fullmatch(text)
    try:
        amount = Quantity.parse(f"{match[1]}{match[2].upper()}i" if match else text)
    except QuantityError:
        amount = Quantity(-1)
    if amount.sign < 0 or text[-1:].isdigit():
        raise HugePagesError(
            f"{text[:80]!r} is no number of pages; write 512, or bytes with a unit such as 4Gi"
        )
    exact = amount.round_up(0)[1]
    if not exact or amount.value() % size:
        below = amount.value() // size * size
        near = [_binary(found) for found in (below, below + size) if found]
        raise HugePagesError(
            f"{text} is no whole number of {size_text(size)} pages; write {' or '.join(near)}"
        )
    return amount.value() // size


def _binary(size: int) -> str:
    return str(Quantity(size, 0, Format.BINARY_SI))


def even_shares(count: int, nodes: Sequence[int | None]) -> dict[int | None, int]:
    """As many pages on every node; the first ones get one more where it does not come out even.

    >>> even_shares(5, [0, 1])
    {0: 3, 1: 2}
    """
    each, more = divmod(count, len(nodes))
    return {node: each + (index < more) for index, node in enumerate(nodes)}


def unused(pools: Iterable[Pool], spare: int) -> int:
    """The pages of these pools that can be given back: free and kept.

    ``spare`` is the number of free pages of the whole machine that are promised to nobody; the
    kernel does not tell that by node.
    """
    return max(0, min(sum(_idle(pool) for pool in pools), spare))


def released_shares(pools: Iterable[Pool], count: int) -> dict[int | None, int]:
    """From which nodes ``count`` pages are taken: always one of where most are idle.

    It takes no more than are idle.
    """
    idle = {pool.node: _idle(pool) for pool in pools}
    taken = dict.fromkeys(idle, 0)
    rest = min(count, sum(idle.values()))
    # Level the highest ones, all at once: there may be millions of pages.
    while rest:
        top = max(idle.values())
        highest = [node for node, pages in idle.items() if pages == top]
        below = max((pages for pages in idle.values() if pages < top), default=0)
        for node, pages in even_shares(min(rest, (top - below) * len(highest)), highest).items():
            idle[node] -= pages
            taken[node] += pages
            rest -= pages
    return {node: pages for node, pages in taken.items() if pages}


def _idle(pool: Pool) -> int:
    return min(pool.free, pool.kept)
