"""What a manifest finds that is applied once more: the same pod, or another one of its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pinfold.core.pod.manifest.spec_identity import differences, resized
from pinfold.node.pod_table import NameTakenError, PodTable
from pinfold.node.pods.manager import FOREGROUND
from pinfold.ports.records import PodPhase, PodRecord

_APPLIED: Final = "api"
_MOST_FIELDS: Final = 5


def unchanged(pods: PodTable, manifest: Mapping[str, Any]) -> PodRecord | None:
    """The pod that runs and is what a manifest says; None where none of its name runs.

    A pod that has ended or was rejected is none: it is decided about anew.

    Args:
        pods: those of the node.
        manifest: a Pod as it was sent.

    Raises:
        PodError: there is one of its name, and the manifest is no valid pod.
        NameTakenError: the one of its name is another pod, or about to end.
    """
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    full = f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"
    record = next((one.record for one in pods.active.values() if one.name == full), None)
    if record is None:
        return None
    if metadata.get("uid") not in (None, "", record.uid):
        return None  # another pod, as it says itself; its name is not free
    short = f"pod/{full.removeprefix('default/')}"
    if record.phase is PodPhase.TERMINATING:
        raise NameTakenError(
            f"pod {full} is still ending", f"apply it when it is gone; pinfold delete {short} waits"
        )
    known = json.loads(record.manifest)
    found = differences(known, manifest)
    if not found:
        return record
    fields = ", ".join(map(str, found[:_MOST_FIELDS]))
    more = f" and {len(found) - _MOST_FIELDS} more" if len(found) > _MOST_FIELDS else ""
    problem = f"pod {full} runs already, and differs in {fields}{more}"
    raise NameTakenError(problem, _remedy(record, short, resized(known, manifest)))


def _remedy(record: PodRecord, short: str, others: tuple[tuple[str, int], ...]) -> str:
    if record.source == FOREGROUND:
        return "it is a command of pinfold run, which ends by itself: choose another name"
    if record.source != _APPLIED:
        return f"it is from {record.source}: change it there"
    anew = f"pinfold delete {short}, then apply it again"
    if not others:
        return anew
    resizes = " and ".join(
        f"pinfold resize {short} --container {name} --cpus {cpus}" for name, cpus in others
    )
    return f"{resizes}, while it runs; or {anew}"
