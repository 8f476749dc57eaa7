"""Pods of a GPU cluster, 2023.

The file is that of the kubernetes-scheduler-simulator of the authors of "Beware of Fragmentation"
(USENIX ATC 2023; Apache-2.0), also published as cluster-trace-gpu-v2023.  What becomes of its
columns is in docs/reference/traces.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.traces.cells import MAX_NUMBER, CellError, rows, seconds, whole
from pinfold.adapters.traces.files import damaged, shown, trace_file
from pinfold.core.pod.pod import QOSClass
from pinfold.ports.arrivals import Arrival, PodSize

GPU: Final = "nvidia.com/gpu"
FILES: Final = ("openb_pods.csv", "openb_pod_list_default.csv")
"""The second is the name under which the data is published."""
QOS: Final = {
    "LS": QOSClass.GUARANTEED,
    "Guaranteed": QOSClass.GUARANTEED,
    "Burstable": QOSClass.BURSTABLE,
    "BE": QOSClass.BEST_EFFORT,
}
"""LS, which is no class of the API, are latency-sensitive: those that exclusive CPUs are for."""
_MIB: Final = 2**20
_MAX_GPUS: Final = 1024
_WHOLE_GPU: Final = 1000
_COLUMNS: Final = (
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)


class OpenB(Struct, frozen=True):
    """The pods of the trace, in a folder with its file.

    Attributes:
        folder: where the file is, packed or not.
        share: of the pods; who is in a share is in each larger one.
    """

    folder: str
    share: float = 1.0

    def files(self) -> tuple[Path]:
        """Its only file.

        Raises:
            TraceError: it is missing.
        """
        return (trace_file(self.folder, *FILES),)

    def tells_a_class(self) -> bool:
        """Of each pod."""
        return True

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Read the whole trace, then yield its pods; only the share is drawn.

        Raises:
            TraceError: the file is missing or damaged.
        """
        found = read_pods(*self.files())
        taken = random.Random(f"{seed}/share").random  # noqa: S311 - the same every time, no secret
        return (one for one in found if taken() < self.share)


def read_pods(path: Path) -> list[Arrival]:
    """The pods in the order of their creation; the first one comes at 0.

    Raises:
        TraceError: the file is damaged.
    """
    sizes: dict[PodSize, PodSize] = {}
    found = []
    for number, row in rows(path, _COLUMNS, others=True):
        *asked, created, deleted, scheduled = row
        try:
            size = _size(*asked)
            size = sizes.setdefault(size, size)
            comes, ends = seconds(created, "creation_time"), seconds(deleted, "deletion_time")
            # A pod that was never scheduled says only how long somebody waited for it.
            starts = seconds(scheduled, "scheduled_time") if scheduled else comes
        except CellError as error:
            raise damaged(path, number, str(error)) from None
        if not comes <= starts <= ends:
            raise damaged(path, number, "not created, scheduled and deleted in this order")
        found.append(Arrival(comes, ends - starts, size))
    found.sort(key=itemgetter(0))
    first = found[0].at if found else 0.0
    return [one._replace(at=one.at - first) for one in found]


def _size(cpu_milli: str, memory_mib: str, num_gpu: str, gpu_milli: str, qos: str) -> PodSize:
    gpus = whole(num_gpu, "num_gpu", _MAX_GPUS)
    if (known := QOS.get(qos)) is None:
        raise CellError(f"unknown qos {shown(qos)}; it is {', '.join(QOS)}")
    # A pod with a part of a GPU shares it by means that are no resource of the API.
    shares = whole(gpu_milli, "gpu_milli", _WHOLE_GPU) < _WHOLE_GPU
    extended = () if shares or not gpus else ((GPU, gpus),)
    memory = whole(memory_mib, "memory_mib", MAX_NUMBER // _MIB) * _MIB
    return PodSize(whole(cpu_milli, "cpu_milli"), memory, extended, known)
