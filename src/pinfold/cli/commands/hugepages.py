"""``pinfold hugepages``: the kernel's pools of huge pages, per NUMA node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from pinfold.adapters.hugetlb import HugePagePoolError, HugePagePools
from pinfold.adapters.machines.source import open_machine
from pinfold.cli.forms import Output, output_option
from pinfold.cli.output import InputError, Refused, input_errors, machine_option
from pinfold.cli.progress_line import progress_line
from pinfold.core.machine.machine import MachineError
from pinfold.core.memory.hugepage_pools import (
    Pool,
    parse_amount,
    parse_page_size,
    recorded_pools,
    size_text,
    unused,
)
from pinfold.core.pod.hugepages import HugePagesError, resource_name
from pinfold.documents.hugepages import HugepageChange, HugepagePool, HugepagePools, NodeChange

Command = Callable[..., Any]

_HEAD: Final = ("node", "size", "total", "free", "surplus")


def _root_option(command: Command) -> Command:
    return click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        default="/",
        metavar="DIR",
        help="The folder that sys and proc are in, where the host's are mounted elsewhere.",
    )(command)


def _node_option(command: Command) -> Command:
    return click.option(
        "--node", type=click.IntRange(0), metavar="N", help="Only this NUMA node.  [default: all]"
    )(command)


@click.group()
def hugepages() -> None:
    """Show and change the kernel's pools of huge pages."""


@hugepages.command()
@machine_option
@_root_option
@output_option("text", "json")
def show(*, machine: str | None, root: Path, output: Output) -> None:
    """Show the pages of every size on every NUMA node: all, the free ones, the surplus."""
    pools = _live_pools(root) if machine is None else _recorded_pools(machine)
    if output.is_document:
        output.tell(_pools_document(pools))
    else:
        click.echo("\n".join(_table(pools)))


@hugepages.command()
@click.argument("size", metavar="SIZE")
@click.argument("amount", required=False, metavar="[COUNT|BYTES]")
@click.option("--total", metavar="COUNT|BYTES", help="Have at least so many in all, instead.")
@_node_option
@click.option("--spread", is_flag=True, help="As many on every node, or none at all.")
@click.option("--best-effort", is_flag=True, help="Keep what the kernel granted if it is less.")
@click.option("--compact", is_flag=True, help="Have the kernel compact memory first.")
@_root_option
@output_option("text", "json")
def allocate(  # noqa: PLR0913 - the options, one each
    *,
    size: str,
    amount: str | None,
    total: str | None,
    node: int | None,
    spread: bool,
    best_effort: bool,
    compact: bool,
    root: Path,
    output: Output,
) -> None:
    """Add huge pages of SIZE (2Mi, 1Gi) to the kernel's pools: COUNT pages, or BYTES such as 4Gi.

    They come evenly from all NUMA nodes, and where one lacks memory, from the others. When the
    kernel grants fewer, they are given back. Needs root.
    """
    if spread and node is not None:
        raise click.UsageError("--spread and --node exclude each other")
    bytes_, asked = _asked(size, amount, total, whole=False)
    with _refusals():
        pools = _open(root)
        before = pools.of_size(bytes_, node)
        if total is not None:
            asked = max(0, asked - sum(pool.kept for pool in before.values()))
        after = before
        if asked:
            if compact:
                with progress_line("compacting memory"):
                    pools.compact()
            with progress_line("asking the kernel for pages"):
                after = pools.allocate(before, asked, exact=spread, best_effort=best_effort)
    _tell(bytes_, asked, before, after, output)


@hugepages.command()
@click.argument("size", metavar="SIZE")
@click.argument("amount", required=False, metavar="[COUNT|BYTES]")
@click.option("--total", metavar="COUNT|BYTES", help="Keep at most so many in all, instead.")
@_node_option
@_root_option
@output_option("text", "json")
def release(  # noqa: PLR0913 - the options, one each
    *,
    size: str,
    amount: str | None,
    total: str | None,
    node: int | None,
    root: Path,
    output: Output,
) -> None:
    """Give huge pages of SIZE back to the kernel: COUNT, or BYTES, or all that nobody uses.

    Pages that are in use are never taken. Needs root.
    """
    bytes_, asked = _asked(size, amount, total, whole=True)
    with _refusals():
        pools = _open(root)
        before = pools.of_size(bytes_, node)
        if total is not None:
            asked = max(0, sum(pool.kept for pool in before.values()) - asked)
        elif amount is None:
            asked = unused(before.values(), pools.spare(bytes_))
        with progress_line("giving pages back"):
            after = pools.release(before, asked) if asked else before
    _tell(bytes_, asked, before, after, output)


# ------------------------------------------------------------------------------------------ input


def _asked(size: str, amount: str | None, total: str | None, *, whole: bool) -> tuple[int, int]:
    """Page size in bytes, and pages; ``whole`` where no number is one, too."""
    if amount is not None and total is not None:
        raise click.UsageError("say either how many pages, or --total")
    text = total if amount is None else amount
    if text is None and not whole:
        raise click.UsageError("say how many pages, or --total")
    with input_errors(HugePagesError):
        bytes_ = parse_page_size(size)
        return bytes_, 0 if text is None else parse_amount(text, bytes_)


def _open(root: Path) -> HugePagePools:
    return HugePagePools(root)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except HugePagePoolError as error:
        raise Refused(str(error)) from None


def _live_pools(root: Path) -> list[Pool]:
    with _refusals():
        return _open(root).read()


def _recorded_pools(source: str) -> list[Pool]:
    with input_errors(MachineError):
        machine = open_machine(source)
    pools = recorded_pools(machine)
    if not pools:
        raise InputError(f"{source}: it says nothing about huge pages; take a pinfold capture")
    return pools


# ----------------------------------------------------------------------------------------- output


def _table(pools: Sequence[Pool]) -> Iterator[str]:
    rows = [
        _HEAD,
        *(
            (
                "-" if pool.node is None else str(pool.node),
                size_text(pool.size),
                str(pool.total),
                str(pool.free),
                "-" if pool.surplus is None else str(pool.surplus),
            )
            for pool in pools
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _tell(
    size: int,
    asked: int,
    before: dict[int | None, Pool],
    after: dict[int | None, Pool],
    output: Output,
) -> None:
    document = HugepageChange(
        size=size,
        resource=resource_name(size),
        asked=asked,
        changed=sum(after[node].kept - pool.kept for node, pool in before.items()),
        nodes=[
            NodeChange(node=node, before=pool.kept, after=after[node].kept)
            for node, pool in before.items()
        ],
    )
    if output.is_document:
        output.tell(document)
        return
    for node, pool in before.items():
        change = after[node].kept - pool.kept
        if change:
            click.echo(
                f"{pool.place}: {pool.kept} -> {_pages(after[node].kept)} of {size_text(size)}, "
                f"{after[node].free} free"
            )
    if not document.changed:
        kept = sum(pool.kept for pool in after.values())
        click.echo(f"nothing to do: {_pages(kept)} of {size_text(size)}")
    elif abs(document.changed) < asked:
        click.echo(f"{abs(document.changed)} of {asked} pages were granted")


def _pools_document(pools: Iterable[Pool]) -> HugepagePools:
    return HugepagePools(
        pools=[
            HugepagePool(
                node=pool.node,
                size=pool.size,
                resource=resource_name(pool.size),
                total=pool.total,
                free=pool.free,
                surplus=pool.surplus,
            )
            for pool in pools
        ]
    )


def _pages(count: int) -> str:
    return f"{count} page{'s' * (count != 1)}"
