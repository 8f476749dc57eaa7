"""Reads the pods on record as the configured node sees them."""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec.structs import replace

from pinfold.admission.admission import Node
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.workload import Workload


def recorded_workload(node: Node) -> Callable[[str], Workload]:
    """What reads the pod of a manifest in the record; that raises ValueError."""

    def parse(manifest: str) -> Workload:
        workload = workload_from_api(json.loads(manifest), admitted=True)
        return replace(workload, pod=node.seen(workload.pod))

    return parse
