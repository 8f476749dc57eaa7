"""Which kubelets take a state file: as a document, and as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import UNSET

from pinfold.documents.state import StateAcceptance, StateVersions
from pinfold.state.acceptance import Acceptance, Kubelet, Outcome
from pinfold.state.show import visible
from pinfold.state.state_file import StateFile


def versions_document(
    file: Path, state: StateFile, writer: Kubelet | None, told: Sequence[Acceptance]
) -> StateVersions:
    """The document of ``pinfold state versions``."""
    return StateVersions(
        file=str(file),
        kind=state.kind.value,
        layout=state.layout,
        written_by=UNSET if writer is None else str(writer),
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
    file: Path, state: StateFile, writer: Kubelet | None, told: Sequence[Acceptance]
) -> str:
    """The same for people."""
    head = f"{file}: {state.kind.value}, layout {state.layout}"
    if writer is not None:
        head += f", as kubelet {writer} writes it"
    lines = [line for one in told for line in _lines(file, state, one)]
    return "\n".join([head, *(visible(line) for line in lines)])


def _lines(file: Path, state: StateFile, one: Acceptance) -> Iterator[str]:
    remark = "" if one.kubelet.is_recorded else " (from proposals, not recorded)"
    yield f"kubelet {one.kubelet}{remark}: {_outcome(one)}"
    for uid in one.lost:
        yield f"  loses: what pod {uid} has as a whole"
    if one.outcome is Outcome.REFUSED:
        yield f"  says:  {one.error}"
        command = one.kubelet.command_for(state, str(file))
        yield f"  mend:  drain the node and delete the file, or {command}"


def _outcome(one: Acceptance) -> str:
    if one.outcome is Outcome.ACCEPTED:
        return "accepted as it is"
    if one.outcome is Outcome.MIGRATED and one.writes is not None:
        return f"accepted, and the next write makes it {one.writes.value}"
    return "refused"
