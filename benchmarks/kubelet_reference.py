"""The kubelet's own speed on the same work, for the ratios.

Origin: the CPU manager's and topology manager's code of Kubernetes 1.34 (Go 1.24), run once on a
2-core x86-64 machine with nothing else running; the fastest batch, which goes with
:data:`benchmarks.calibration.REFERENCE_NS`.  Two threads per core, every other core free.

The merges of short lists are of Kubernetes 1.36.2 (Go 1.26), beside a calibration loop of 18.4 ms:
of 200 lists by chance, which are not those of the benchmark; that these are about as long is
concluded from the time that an earlier merge took for either.
"""

from __future__ import annotations

from typing import Final

from benchmarks.calibration import REFERENCE_NS

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000

_LATER: Final = REFERENCE_NS / (18.4 * MS)
"""How much slower the machine of the older figures was."""

FASTEST_NS: Final[dict[str, float]] = {
    "allocate.packed.8": 11.5 * US,
    "allocate.packed.64": 164 * US,
    "allocate.packed.256": 1.67 * MS,
    "allocate.packed.512": 5.68 * MS,
    "allocate.packed.8.n1": 13.7 * US,
    "allocate.packed.64.n1": 219 * US,
    "allocate.packed.256.n1": 2.74 * MS,
    "allocate.packed.512.n1": 11.6 * MS,
    "allocate.packed.8.n2": 10.4 * US,
    "allocate.packed.64.n2": 159 * US,
    "allocate.packed.256.n2": 1.60 * MS,
    "allocate.packed.512.n2": 5.98 * MS,
    "allocate.packed.64.half": 197 * US,
    "allocate.packed.256.half": 2.63 * MS,
    "allocate.packed.512.half": 15.4 * MS,
    "policy.8": 53 * US,
    "policy.64": 300 * US,
    "policy.256": 2.93 * MS,
    "policy.512": 10.5 * MS,
    "hints.64.numa1": 30 * US,
    "hints.64": 40 * US,
    "hints.64.numa4": 148 * US,
    "hints.64.numa8": 2.27 * MS,
    "hints.512": 20.6 * MS,
    "merge.4x2.single": 98 * US,
    "merge.4x4.single": 20.9 * MS,
    "merge.6x3.single": 184 * MS,
    "merge.8x1.single": 102 * US,
    "merge.8x2.single": 20.4 * MS,
    "merge.8x3.single": 10.2 * S,
    "merge.8x4.single": 1800 * S,
    "merge.4x3.short": 79 * US * _LATER,
    "merge.8x2.short": 73 * US * _LATER,
}

ESTIMATED: Final = frozenset({"merge.8x4.single"})
"""Not run, for it takes the kubelet half an hour or more: 255 times the three-provider merge."""
