"""Why a pod got its CPUs, or was refused: hints, their merge, the binding constraint, a way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MovePlan
from pinfold.render.move_words import headline, staying
from pinfold.render.moves import move_lines
from pinfold.render.terminal import Line, Style, cell_width, clean, pad, print_lines, wrap


class HintRow(Struct, frozen=True):
    """A topology hint: NUMA nodes (``None``: any), and whether the provider prefers it."""

    numa_nodes: tuple[int, ...] | None
    preferred: bool

    def text(self) -> str:
        """``{0,1} ★``; the star stands for preferred."""
        nodes = "any" if self.numa_nodes is None else "{" + str(CPUSet(self.numa_nodes)) + "}"
        return f"{nodes} ★" if self.preferred else nodes


class ProviderHints(Struct, frozen=True):
    """The hints for one resource; no hints means that it cannot be had at all.

    ``remark`` says more, such as ``no preference``.
    """

    provider: str
    resource: str
    hints: tuple[HintRow, ...] = ()
    remark: str = ""


class ContainerExplanation(Struct, frozen=True):
    """One container: what was asked, offered, merged and taken.

    ``constraint`` is the sentence that names what bound the decision; ``steps`` are those of the
    allocation in order (``took 2 whole cores on NUMA node 0``), ``extras`` what it was given beside
    CPUs.
    """

    name: str
    request: str = ""
    providers: tuple[ProviderHints, ...] = ()
    merged: HintRow | None = None
    constraint: str = ""
    cpus: CPUSet | None = None
    steps: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    now: tuple[str, ...] = ()
    """How a container has its CPUs now that has them by load."""


class ExplainView(Struct, frozen=True):
    """A whole explanation; ``remedies`` are the nearest changes that would admit the pod.

    ``notes`` are wishes that were not binding and could not be met; ``ended`` says how an admitted
    pod ended later, ``failed`` that this was no good end.
    """

    pod: str
    qos: str
    admitted: bool
    policy: str = ""
    reason: str | None = None
    message: str | None = None
    containers: tuple[ContainerExplanation, ...] = ()
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ended: str = ""
    failed: bool = False
    moves: MovePlan | None = None
    """Moves of others that would admit the pod."""
    whole: ContainerExplanation | None = None
    """What the pod has as a whole, which its containers divide; it has no name."""


def render_explain(view: ExplainView, style: Style) -> str:
    """The explanation as text, ending in a newline."""
    lines: list[Line] = [*_verdict(view, style)]
    for container in (*filter(None, (view.whole,)), *view.containers):
        lines += [[], *_container(container, style)]
    if view.remedies:
        lines += [[], [("What would admit it", "bold")]]
        for number, remedy in enumerate(view.remedies, 1):
            lines += _hanging(f"{number}. ", remedy, style, "good")
    if view.moves is not None:
        lines += [[], [("Moves that would admit it", "bold")]]
        for text in (*staying(view.moves), headline(view.moves)):
            lines += _hanging("  ", text, style, "", "dim")
        lines += move_lines(view.moves, {}, style)
    if view.notes:
        lines.append([])
        for note in view.notes:
            lines += _hanging("• ", note, style, "warn")
    return print_lines(lines, style)


def _verdict(view: ExplainView, style: Style) -> Iterator[Line]:
    color, word = ("good", "admitted") if view.admitted else ("bad", "rejected")
    mark = ("✗", "bad") if view.failed or not view.admitted else ("✓", "good")
    names = wrap(clean(view.pod), style.width - 2, after="/-.")
    for at, text in enumerate(names):
        yield [(f"{mark[0]} " if at == 0 else "  ", mark[1]), (text, "bold")]
    yield [("  ", ""), (word, color), (f"  {clean(view.qos)}", "dim")]
    if view.ended:
        yield from _hanging("  ended: ", view.ended, style, "", "bad" if view.failed else "")
    if view.policy:
        for text in wrap(clean(view.policy), style.width - 2):
            yield [("  ", ""), (text, "dim")]
    if view.reason:
        yield from _hanging("  ", view.reason, style, "", "bad")
    if view.message:
        yield from _hanging("  ", view.message, style)


def _container(container: ContainerExplanation, style: Style) -> Iterator[Line]:
    name = clean(container.name)
    head: Line = [("Container ", "dim"), (name, "bold")] if name else [("As a whole", "bold")]
    request = clean(container.request)
    if not request or cell_width(name) + cell_width(request) + 12 <= style.width:
        yield [*head, (f"  {request}", "dim")]
    else:
        yield head
        yield from _hanging("  ", request, style, "", "dim")
    if container.providers:
        yield from _hints(container.providers, style)
    if container.merged is not None:
        yield from _fact("merged hint", container.merged.text(), style)
    if container.constraint:
        yield from _fact("decided by", container.constraint, style, "warn")
    if container.cpus is not None:
        yield from _fact("CPUs", str(container.cpus) or "none", style, "good")
    for number, step in enumerate(container.steps, 1):
        yield from _hanging(f"    {number}. ", step, style, "dim")
    for number, extra in enumerate(container.extras):
        yield from _fact("also" if number == 0 else "", extra, style, "good")
    for number, text in enumerate(container.now):
        yield from _fact("now" if number == 0 else "", text, style)


def _hints(providers: Sequence[ProviderHints], style: Style) -> Iterator[Line]:
    """Provider, resource and hints; the best ones stand first, as they are given."""
    heads = [clean(f"{row.provider} {row.resource}".strip()) for row in providers]
    left = max(map(cell_width, heads))
    star = "★ preferred"
    yield [("  hints", "dim"), (f"  NUMA nodes, {star}", "dim")]
    for head, row in zip(heads, providers, strict=True):
        texts = [hint.text() for hint in row.hints]
        if row.remark:
            texts.append(f"({clean(row.remark)})")
        if not row.hints and not row.remark:
            texts = ["none: it cannot be had"]
        if left + 16 > style.width:
            yield from _hanging("    ", head, style, "", "key")
            yield from _hanging("      ", "  ".join(texts), style)
            continue
        for at, line in enumerate(_packed(texts, style.width - left - 6)):
            parts: Line = [(part, "good" if "★" in part else "") for part in line]
            yield [("    ", ""), (pad(head if at == 0 else "", left), "key"), ("  ", ""), *parts]


def _packed(texts: Sequence[str], width: int) -> Iterator[list[str]]:
    """Texts in lines of at most ``width`` columns, two spaces between them."""
    line: list[str] = []
    used = 0
    for text in texts:
        for part in wrap(text, width):
            if line and used + cell_width(part) + 2 > width:
                yield line
                line, used = [], 0
            line.append(part + "  ")
            used += cell_width(part) + 2
    if line:
        yield line


def _fact(name: str, value: str, style: Style, color: str = "") -> Iterator[Line]:
    yield from _hanging(f"  {name:<12}", value, style, "key", color)


def _hanging(
    head: str, text: str, style: Style, head_color: str = "", color: str = ""
) -> Iterator[Line]:
    """A head, and the text wrapped beside it."""
    room = style.width - cell_width(head)
    for at, part in enumerate(wrap(clean(text), room, after=",")):
        yield [(head if at == 0 else " " * len(head), head_color), (part, color)]
