"""Why a pod got its CPUs, or was refused: hints, their merge, the binding constraint, a way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MovePlan
from pinfold.render.move_words import headline, staying
from pinfold.render.moves import move_lines
from pinfold.render.terminal import Line, Style, cell_width, clean, pad, print_lines, wrap

_ENDLESS: Final = 1 << 20
_ALIKE: Final = 3
"""So many of those alike are named."""


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


class AlikeView(Struct, frozen=True):
    """Pods about which was decided alike; the first one is explained."""

    pods: tuple[str, ...]
    explained: ExplainView


class SeveralView(Struct, frozen=True):
    """Explanations of several pods; of all pods so many were ``admitted`` and ``rejected``."""

    admitted: int
    rejected: int
    policy: str
    found: tuple[AlikeView, ...]
    notes: tuple[str, ...] = ()


def render_explain(view: ExplainView, style: Style, *, hints: bool = False) -> str:
    """The explanation as text, ending in a newline: the answer first.

    ``hints`` are those of the providers, and their merge.
    """
    return print_lines([*_explained(view, style, hints=hints), *_notes(view.notes, style)], style)


def explain_lines(view: ExplainView) -> tuple[str, ...]:
    """The explanation for a page: a line each, however long, and nothing of options.

    A page tells above it whose it is, that it was admitted, and the policies of now: so the reasons
    come first, and under which policies it was decided comes last.
    """
    style = Style(width=_ENDLESS)
    lines = [
        *(() if view.admitted else (_answer(view),)),
        *_reasons(replace(view, policy=""), style, hints=False, offers=False),
        *_notes(view.notes, style),
    ]
    if context := " · ".join(filter(None, (view.qos if view.admitted else "", view.policy))):
        lines += [[], [("  ", ""), (clean(context), "dim")]]
    return tuple(print_lines(lines, style).lstrip("\n").splitlines())


def render_several(view: SeveralView, style: Style, *, hints: bool = False) -> str:
    """Several explanations, one after the other; those alike are told once."""
    lines: list[Line] = []
    for one in view.found:
        if lines:
            lines.append([])
        lines += _explained(one.explained, style, alike=one.pods[1:], hints=hints)
        for note in one.explained.notes:
            lines += _hanging("• ", note, style, "warn")
    return print_lines([*lines, *_notes(view.notes, style)], style)


def render_rejections(view: SeveralView, style: Style) -> str:
    """Every pod that is rejected, why, and what would help; those alike once."""
    every = view.admitted + view.rejected
    lines: list[Line] = []
    head = f"{view.rejected:,} of {every:,} pod{'s' * (every != 1)} rejected"
    if not view.rejected:
        head = f"{every:,} pod{'s' * (every != 1)}, all admitted" if every else "no pods"
    lines.append([(head, "bold")])
    lines += [[(text, "dim")] for text in wrap(clean(view.policy), style.width)]
    for one in view.found:
        lines += [[], *_names(one.explained, style, one.pods[1:]), *_why(one.explained, style)]
        lines += _hanging("  ", _help(one.explained), style, "", "good")
    lines.append([])
    more = "pod/NAME, NAMESPACE/NAME or deployment/NAME beside the manifests explains it in full"
    lines += _hanging("", f"{more}; --hints adds the topology hints", style, "", "dim")
    return print_lines([*lines, *_notes(view.notes, style)], style)


def _explained(
    view: ExplainView,
    style: Style,
    *,
    alike: Sequence[str] = (),
    hints: bool,
) -> Iterator[Line]:
    """The answer, what would help, and then how it came about."""
    yield from _names(view, style, alike)
    yield _answer(view)
    yield from _reasons(view, style, hints=hints)


def _answer(view: ExplainView) -> Line:
    color, word = ("good", "admitted") if view.admitted else ("bad", "rejected")
    return [("  ", ""), (word, color), (f"  {clean(view.qos)}", "dim")]


def _reasons(
    view: ExplainView, style: Style, *, hints: bool, offers: bool = True
) -> Iterator[Line]:
    if view.ended:
        yield from _hanging("  ended: ", view.ended, style, "", "bad" if view.failed else "")
    yield from _why(view, style)
    if view.remedies:
        yield []
        yield [("What would admit it", "bold")]
        for number, remedy in enumerate(view.remedies, 1):
            yield from _hanging(f"{number}. ", remedy, style, "good")
    if view.moves is not None:
        yield []
        yield [("Moves that would admit it", "bold")]
        for text in (*staying(view.moves), headline(view.moves)):
            yield from _hanging("  ", text, style, "", "dim")
        yield from move_lines(view.moves, {}, style)
    if view.policy:
        if view.remedies or view.moves is not None:
            yield []
        for text in wrap(clean(view.policy), style.width - 2):
            yield [("  ", ""), (text, "dim")]
    every = (*filter(None, (view.whole,)), *view.containers)
    for container in every:
        yield []
        yield from _container(container, style, hints=hints)
    if offers and not hints and any(one.providers for one in every):
        yield []
        yield from _hanging("", "--hints shows the hints of each provider", style, "", "dim")


def _notes(notes: Sequence[str], style: Style) -> Iterator[Line]:
    if notes:
        yield []
    for note in notes:
        yield from _hanging("• ", note, style, "warn")


def _help(view: ExplainView) -> str:
    """What would help, in a few words."""
    if view.remedies:
        first, *others = view.remedies
        more = f" ({len(others)} more suggestion{'s' * (len(others) > 1)})"
        return f"would help: {first}" + (more if others else "")
    if view.moves is not None:
        return "would help: moves of others"
    return "no change that was tried would admit it"


def _names(view: ExplainView, style: Style, alike: Sequence[str]) -> Iterator[Line]:
    mark = ("✗", "bad") if view.failed or not view.admitted else ("✓", "good")
    names = wrap(clean(view.pod), style.width - 2, after="/-.")
    for at, text in enumerate(names):
        yield [(f"{mark[0]} " if at == 0 else "  ", mark[1]), (text, "bold")]
    if alike:
        shown = ", ".join(alike[:_ALIKE]) + ", ..." * (len(alike) > _ALIKE)
        yield from _hanging("  ", f"and {len(alike):,} alike: {shown}", style, "", "dim")


def _why(view: ExplainView, style: Style) -> Iterator[Line]:
    """The kubelet's reason and message, where it was rejected."""
    if told := ": ".join(filter(None, (view.reason, view.message))):
        yield from _hanging("  ", told, style, "", "bad")


def _container(container: ContainerExplanation, style: Style, *, hints: bool) -> Iterator[Line]:
    name = clean(container.name)
    head: Line = [("Container ", "dim"), (name, "bold")] if name else [("As a whole", "bold")]
    request = clean(container.request)
    if not request or cell_width(name) + cell_width(request) + 12 <= style.width:
        yield [*head, (f"  {request}", "dim")]
    else:
        yield head
        yield from _hanging("  ", request, style, "", "dim")
    if hints and container.providers:
        yield from _hints(container.providers, style)
    if hints and container.merged is not None:
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
