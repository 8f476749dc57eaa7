"""``pinfold shield``: everything else on the machine off some CPUs, and back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
from msgspec import UNSET
from msgspec.structs import replace

from pinfold.adapters import shield as adapter
from pinfold.adapters.shield import (
    AGENT_TREE,
    Shield,
    ShieldReport,
    foreign_threads,
    lower_shield,
    raise_shield,
    read_shield,
)
from pinfold.cli.forms import Output, output_option
from pinfold.cli.output import Refused, input_errors
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents.shield import Shield as Document
from pinfold.ports.errors import PortError


@click.command()
@click.option("--cpus", metavar="LIST", help="The CPUs to be shielded, such as 2-7.")
@click.option("--off", is_flag=True, help="Undo it: everything goes back to where it was.")
@click.option("--irqs", is_flag=True, help="With --cpus: move interrupts off these CPUs as well.")
@click.option(
    "--keep",
    multiple=True,
    metavar="CGROUP",
    help="With --cpus: a cgroup, from the hierarchy's root, that keeps its CPUs beside the agent's "
    "own, /pinfold.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where it is noted what is to be undone.  [default: /run/pinfold/shield.json]",
)
@output_option("text", "json")
def shield(  # noqa: PLR0913 - the options, one each
    *,
    cpus: str | None,
    off: bool,
    irqs: bool,
    keep: tuple[str, ...],
    record: Path | None,
    output: Output,
) -> None:
    """Move everything else off some CPUs.

    All processes of this machine, and those kernel threads that can be moved, keep to the other
    CPUs until --off or the next reboot. It lists what could not be moved. Without options it says
    what is shielded, and who may run there. It needs root, and no agent.
    """
    if off and (cpus is not None or irqs or keep):
        raise click.UsageError("--off takes no --cpus, --irqs or --keep")
    if cpus is None and (irqs or keep):
        raise click.UsageError("--irqs and --keep go with --cpus")
    file = record or adapter.RECORD
    with input_errors(adapter.ShieldRequestError):
        try:
            if cpus is not None:
                document = _raised(_parse(cpus), file, keep, irqs=irqs)
            elif off:
                document = _lowered(file)
            else:
                document = _status(file)
        except adapter.ShieldRequestError:
            raise
        except PortError as error:
            raise Refused(str(error)) from None
    if output.is_document:
        output.tell(document)
    else:
        click.echo("\n".join(_lines(document)))


def _parse(text: str) -> CPUSet:
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        raise click.UsageError(f"--cpus {text!r}: {error}") from None


def _raised(cpus: CPUSet, record: Path, keep: tuple[str, ...], *, irqs: bool) -> Document:
    kept = tuple(dict.fromkeys((AGENT_TREE, *keep)))
    report = asyncio.run(raise_shield(cpus, irqs=irqs, keep=kept, record=record))
    return _told(_document("raised", report.shield), report)


def _lowered(record: Path) -> Document:
    report = asyncio.run(lower_shield(record=record))
    return _told(_document("none" if report.shield is None else "lowered", report.shield), report)


def _status(record: Path) -> Document:
    found = read_shield(record)
    if found is None:
        return _document("none", None)
    document = _document("up" if found.complete else "unfinished", found)
    return replace(document, strangers=[str(one) for one in foreign_threads(found)])


def _document(state: str, shield: Shield | None) -> Document:
    if shield is None:
        return Document(state=state)
    return Document(
        state=state,
        cpus=str(shield.cpus),
        others=str(shield.others),
        method=shield.method.value,
        keep=shield.keep,
        irqs=shield.irqs,
    )


def _told(document: Document, report: ShieldReport) -> Document:
    return replace(
        document,
        moved=report.moved,
        bound=report.bound,
        left=report.left,
        irqs_moved=report.irqs_moved,
        irqs_fixed=report.irqs_fixed,
        notes=report.notes,
    )


def _lines(document: Document) -> list[str]:
    lines = _headline(document)
    if document.irqs_fixed:
        lines.append(f"left: interrupts {', '.join(document.irqs_fixed)} cannot be moved")
    lines += [f"left: {left}" for left in document.left or ()]
    lines += [f"note: {note}" for note in document.notes or ()]
    found = document.strangers
    if found is not UNSET:
        lines.append(f"{len(found)} thread(s) of others may run there")
        lines += [f"  {one}" for one in found[:10]]
        if len(found) > 10:
            lines.append(f"  and {len(found) - 10} more")
    return lines


_METHODS: Final = {
    "systemd": "by systemd's slices",
    "cgroup2": "by cgroup v2",
    "cgroup1": "by cgroup v1",
}


def _headline(document: Document) -> list[str]:
    cpus, others, state = document.cpus, document.others, document.state
    if document.method is UNSET:
        return ["no CPUs are shielded"]
    by = _METHODS[document.method]
    if state == "lowered":
        return [f"CPUs {cpus} are no longer shielded; {document.moved} task(s) moved back"]
    if state == "unfinished":
        return [
            f"CPUs {cpus} are half shielded ({by}): raising it was interrupted",
            "run it again, or pinfold shield --off",
        ]
    lines = [f"CPUs {cpus} are shielded ({by}); everything else runs on {others}"]
    if state == "raised":
        lines.append(
            f"moved {document.moved} task(s); {document.bound} kernel thread(s) are bound "
            "to their CPU and stay"
        )
        if document.irqs:
            lines.append(f"moved {document.irqs_moved} interrupt(s)")
    return lines
