"""Which kubelets take a state file: as a document, and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import UNSET

from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.documents.state import StateAcceptance, StateVersions
from pinfold.state.acceptance import Acceptance, Kubelet, Outcome
from pinfold.state.show import visible
from pinfold.state.state_file import StateFile


def versions_document(
    file: Path, state: StateFile, writer: Acceptance | None, told: Sequence[Acceptance]
) -> StateVersions:
    """The document of ``pinfold state versions``."""
    return StateVersions(
        file=str(file),
        kind=state.kind.value,
        layout=state.layout,
        written_by=UNSET if writer is None else str(writer.kubelet),
        lost_by_writer=UNSET if writer is None else list(writer.lost) or UNSET,
        kubelets=[_row(one) for one in told],
    )


def _row(one: Acceptance) -> StateAcceptance:
    kubelet = one.kubelet
    return StateAcceptance(
        kubelet=str(kubelet.version),
        pod_level_managers=kubelet.pod_level if kubelet.has_gate else UNSET,
        recorded=kubelet.is_recorded,
        outcome=one.outcome.value,
        writes=UNSET if one.writes is None else one.writes.value,
        error=one.error or UNSET,
        lost=list(one.lost) or UNSET,
    )


def versions_text(
    file: Path, state: StateFile, writer: Acceptance | None, told: Sequence[Acceptance]
) -> str:
    """The same for people."""
    head = f"{file}: {state.kind.value}, layout {state.layout}"
    lines: list[str] = []
    if writer is not None:
        head += f", as kubelet {writer.kubelet} writes it"
        lines += _losses(writer, "lost by then:")
    if not state.checksum_fits:
        lines.append("  checksum: does not fit the content; pinfold state check says more")
    lines += [line for one in told for line in _lines(file, state, one)]
    if writer is None and (kubelet := _with_gate(told)) is not None:
        lines.append(
            f"  note:  --feature-gate {POD_LEVEL_RESOURCE_MANAGERS}=true asks for "
            f"kubelet {kubelet.version} with the gate on"
        )
    return "\n".join([head, *(visible(line) for line in lines)])


def _lines(file: Path, state: StateFile, one: Acceptance) -> Iterator[str]:
    remark = "" if one.kubelet.is_recorded else " (from proposals, not recorded)"
    yield f"kubelet {one.kubelet}{remark}: {_outcome(one)}"
    if one.outcome is not Outcome.REFUSED:
        yield from _losses(one, "loses:")
    if one.outcome is Outcome.REFUSED:
        yield f"  says:  {one.error}"
        command = one.kubelet.command_for(state, str(file))
        yield f"  mend:  drain the node and delete the file, or {command}"


def _losses(one: Acceptance, word: str) -> Iterator[str]:
    for uid in one.lost:
        yield f"  {word} what pod {uid} has as a whole"


def _with_gate(told: Sequence[Acceptance]) -> Kubelet | None:
    """The one kubelet that was asked for, where its gate is off and it does not keep all."""
    one = told[0].kubelet
    asked = len(told) == 1 and one.has_gate and not one.pod_level
    return one if asked and not told[0].keeps_all else None


def _outcome(one: Acceptance) -> str:
    if one.outcome is Outcome.ACCEPTED:
        return "accepted as it is"
    if one.outcome is Outcome.MIGRATED and one.writes is not None:
        return f"accepted, and the next write makes it {one.writes.value}"
    return "refused"
