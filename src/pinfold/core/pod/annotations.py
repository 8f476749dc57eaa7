"""Every annotation of a pod that is Pinfold's, in one table: what it may say, what holds without.

``KEY.pinfold.dev/pod`` is for all containers of a pod, ``KEY.pinfold.dev/container.NAME`` for one
of them, and wins.  The keys have the form that annotations of NRI plugins have; one that is of the
whole pod is older than it (``pinfold.dev/memory-limit``).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod.annotation import DOMAIN, POD, SHOWN, Annotation
from pinfold.core.pod.annotation_values import (
    MAX_GRACE_PERIOD,
    boolean,
    class_name,
    cpu_count,
    cpu_list,
    device_names,
    grace_period,
    one_of,
    percent,
)
from pinfold.core.values.cpuset import CPUSet

PREFERRED: Final = "preferred"
REQUIRED: Final = "required"
KEEP_OFF, ALLOW = "keep-off", "allow"
NEVER, PREFER, REQUIRE = "never", "prefer", "require"

_NOWHERE: Final = ()


NEAR: Final = Annotation[tuple[str, ...]](
    name="near",
    parse=device_names,
    default=(),
    values="devices, separated by commas: `eth0,0000:3b:00.0`",
    unsaid="no device",
    meaning="CPUs of the NUMA nodes [that these devices are at](../how-to/near-a-device.md).",
)
NEAR_POLICY: Final = Annotation(
    name="near-policy",
    parse=one_of(PREFERRED, REQUIRED),
    default=PREFERRED,
    values=f"`{PREFERRED}`, `{REQUIRED}`",
    unsaid=f"`{PREFERRED}`",
    meaning="Whether a pod is rejected that cannot be near.",
)
EXCLUSIVE_CPUS: Final = Annotation(
    name="exclusive-cpus",
    parse=boolean,
    default=True,
    values="`true`, `false`",
    unsaid="`true`",
    meaning="`false`: the container shares CPUs "
    "[although it could own some](../how-to/kubernetes.md#leave-a-pod-out).",
    runtimes=("nri",),
    fixed=True,
)
MEMORY_LIMIT: Final = Annotation(
    name="memory-limit",
    parse=one_of("none"),
    default="",
    values="`none`",
    unsaid="the limits of the manifest",
    meaning="`none`: memory, and huge pages of sizes that the pod does not ask for, have no limit.",
    runtimes=("process", "cri"),
    of_whole_pod=True,
)
SCALE_DOWN_GRACE_PERIOD: Final = Annotation[int | None](
    name="scale-down-grace-period",
    parse=grace_period,
    default=None,
    values=f"seconds, 0 to {MAX_GRACE_PERIOD}",
    unsaid="the node's",
    meaning="How long an application is told before CPUs are taken from it.",
    told=True,
)
RESIZE_BELOW_BASELINE: Final = Annotation(
    name="resize-below-baseline",
    parse=boolean,
    default=False,
    values="`true`, `false`",
    unsaid="`false`",
    meaning="[A resize](../how-to/resize.md) may leave fewer CPUs than the container was given at "
    "its admission.",
)
KEEP_CPUS: Final = Annotation(
    name="keep-cpus",
    parse=cpu_list,
    default=CPUSet(),
    values="CPUs: `3,5`",
    unsaid="any",
    meaning="The CPUs that a shrink leaves to the container.",
)
REBALANCE: Final = Annotation[bool | None](
    name="rebalance",
    parse=boolean,
    default=None,
    values="`true`, `false`",
    unsaid="the node's",
    meaning="Whether the container may be moved "
    "[to better CPUs](../how-to/rebalance.md) while it runs.",
    told=True,
)
MIXED_CPUS: Final = Annotation(
    name="mixed-cpus",
    parse=boolean,
    default=False,
    values="`true`, `false`",
    unsaid="`false`",
    meaning="CPUs of its own and the shared pool "
    "[in one container](../how-to/mixed-containers.md).",
    planned=True,
    fixed=True,
)
SMT_ISOLATE: Final = Annotation[bool | None](
    name="smt-isolate",
    parse=boolean,
    default=None,
    values="`true`, `false`",
    unsaid="the node's",
    meaning="One thread of each core for the container; "
    "[its siblings stay idle](../how-to/smt-isolation.md).",
    planned=True,
    fixed=True,
)
ISOLATED_CPUS: Final = Annotation[str | None](
    name="isolated-cpus",
    parse=one_of(NEVER, PREFER, REQUIRE),
    default=None,
    values=f"`{NEVER}`, `{PREFER}`, `{REQUIRE}`",
    unsaid="the node's",
    meaning="Whether exclusive CPUs are those that the kernel was booted "
    "[to isolate](../how-to/isolated-cpus.md).",
    planned=True,
)
CPU_BURST: Final = Annotation(
    name="cpu-burst",
    parse=percent,
    default=0,
    values="a part of the CPU limit: `0%` to `100%`",
    unsaid="`0%`",
    meaning="How much of the quota of a period [may be saved]"
    "(../how-to/isolate-by-qos.md#bursts-above-a-cpu-limit) for a later one.",
    runtimes=("process",),
    told=True,
)

LOAD_DRIVEN: Final = Annotation(
    name="load-driven",
    parse=boolean,
    default=False,
    values="`true`, `false`",
    unsaid="`false`",
    meaning="The container starts in the shared pool, and has CPUs of its own "
    "[while its load asks for it](../how-to/load-driven-cpus.md).",
    runtimes=("process", "cri"),
    planned=True,
    fixed=True,
)

BORROW: Final = Annotation(
    name="borrow",
    parse=boolean,
    default=True,
    values="`true`, `false`",
    unsaid="`true`",
    meaning="`false`: a best-effort container keeps to the shared pool "
    "where others borrow what owners leave idle.",
    runtimes=("process",),
    told=True,
)
LEND_CPUS: Final = Annotation(
    name="lend-cpus",
    parse=cpu_count,
    default=0,
    values="`true`, `false`, or how many at most",
    unsaid="`false`",
    meaning="Whether the container's idle CPUs are "
    "[lent to best-effort containers](../how-to/lend-idle-cpus.md).",
    runtimes=("process",),
    told=True,
)
IRQS: Final = Annotation[str | None](
    name="irqs",
    parse=one_of(KEEP_OFF, ALLOW),
    default=None,
    values=f"`{KEEP_OFF}`, `{ALLOW}`",
    unsaid="the node's",
    meaning="Whether [interrupts](../how-to/interrupts.md) are kept off its exclusive CPUs.",
    told=True,
)


CACHE: Final = Annotation[str | None](
    name="cache-class",
    parse=class_name,
    default=None,
    values="a class of the configuration, `none`",
    unsaid="the node's",
    meaning="Which part [of the caches and of the memory bandwidth]"
    "(../how-to/cache-and-bandwidth.md) a container with exclusive CPUs has.",
    told=True,
)


LOAD_BALANCE: Final = Annotation(
    name="load-balance",
    parse=boolean,
    default=True,
    values="`true`, `false`",
    unsaid="`true`",
    meaning="`false`: with the node's `partition: isolated` its threads "
    "[are not balanced](../how-to/scheduling-domains.md) over its CPUs.",
    runtimes=("process",),
    told=True,
)


ANNOTATIONS: Final[tuple[Annotation[Any], ...]] = (
    NEAR,
    NEAR_POLICY,
    EXCLUSIVE_CPUS,
    MEMORY_LIMIT,
    SCALE_DOWN_GRACE_PERIOD,
    RESIZE_BELOW_BASELINE,
    KEEP_CPUS,
    REBALANCE,
    MIXED_CPUS,
    SMT_ISOLATE,
    ISOLATED_CPUS,
    LEND_CPUS,
    LOAD_DRIVEN,
    BORROW,
    CACHE,
    CPU_BURST,
    IRQS,
    LOAD_BALANCE,
)
"""The table, in the order of the documentation."""

_ROWS: Final = {row.key().partition("/")[0]: row for row in ANNOTATIONS if not row.of_whole_pod}
_WHOLE: Final = {row.key(): row for row in ANNOTATIONS if row.of_whole_pod}


def annotation_problems(
    annotations: Mapping[Any, Any],
    containers: Collection[str] | None,
    runtime: str | None,
    *,
    own: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield each annotation of our domain that is not in force as it says, and why.

    ``containers`` is None where not all of them are known; ``runtime`` is what runs them, None for
    a plan, which no runtime carries out; ``own`` is whether that is of a node with a section
    ``pinfold``.
    """
    for name, value in annotations.items():
        key = str(name)
        prefix = key.partition("/")[0]
        if prefix != DOMAIN and not prefix.endswith(f".{DOMAIN}"):
            continue
        row = _row_of(key)
        if row is None:
            problem: str | None = _unknown(key)
        else:
            problem = row.problem(key, value, containers, runtime, own=own)
        if problem is not None:
            yield key[:SHOWN], problem


def changed_fixed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The annotations that are to stay as they were when the pod was created, and have not."""
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    rows = ((key, _row_of(key)) for key in changed)
    return [key for key, row in rows if row is not None and row.fixed]


def named(mapping: Mapping[Any, Any]) -> dict[str, Annotation[Any]]:
    """The keys of a mapping that are annotations of the table, whatever they say."""
    rows = {str(key): _row_of(str(key)) for key in mapping}
    return {key: row for key, row in rows.items() if row is not None}


def _row_of(key: str) -> Annotation[Any] | None:
    return _WHOLE.get(key) or _ROWS.get(key.partition("/")[0])


def _unknown(key: str) -> str:
    rows = {row.name: row for row in ANNOTATIONS}
    prefix, _, holder = key.partition("/")
    word = prefix.removesuffix(DOMAIN).rstrip(".") or holder
    near = difflib.get_close_matches(word.lower(), rows, n=1)
    meant = rows[near[0]].key(POD if word == holder else holder)[:SHOWN] if near else ""
    hint = f"did you mean {meant}?" if meant else f"it has {', '.join(rows)}"
    return f"Pinfold has no such annotation; {hint}"
