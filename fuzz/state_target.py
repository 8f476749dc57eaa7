"""State files under the readers of every version, and their conversions."""

from __future__ import annotations

from typing import Final

from pinfold.state.acceptance import KUBELETS, Outcome, acceptance, written_by
from pinfold.state.conversion import convert
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.doctor import examine
from pinfold.state.findings import Circumstances
from pinfold.state.layouts import Layout
from pinfold.state.repair import RepairError
from pinfold.state.state_file import StateFile, UnusableFileError

_NODE: Final = Circumstances()
_MOST: Final = 6000


def run_state_versions(data: bytes) -> None:
    """An answer of each kubelet, which takes what it writes itself; conversions are whole."""
    if len(data) > _MOST:
        return  # each file is read some forty times
    try:
        state = StateFile.read(data)
    except UnusableFileError:
        return
    examine(state, _NODE)
    for kubelet in KUBELETS:
        told = acceptance(state, kubelet, _NODE)
        _hold(told.outcome is not Outcome.REFUSED or told.error, "refused without a word")
        if told.outcome is Outcome.REFUSED:
            continue
        again = acceptance(written_by(state, kubelet, _NODE), kubelet, _NODE)
        _hold(again.outcome is Outcome.ACCEPTED, f"{kubelet} refuses what it writes: {again.error}")
        _hold(again.keeps_all, f"{kubelet} loses what it writes")
    for layout in Layout:
        for drop in (False, True):
            try:
                file = convert(state, layout, {}, drop_pod_entries=drop).file
            except (RepairError, CheckpointError):
                continue
            converted = StateFile.read(file)
            _hold(converted.checksum_fits, "converted with a checksum that does not fit")
            _hold(
                convert(converted, layout, {}).file == file, "converting once more changes the file"
            )


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)
