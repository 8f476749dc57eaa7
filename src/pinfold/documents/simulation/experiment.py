"""What is to be simulated: a file of kind ``Experiment``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import Record

Duration = Annotated[
    str,
    Meta(
        pattern=r"^(0|(0|[1-9][0-9]{0,8})(ms|s|m|h|d))$",
        description="a whole number and its unit, such as 500ms, 30s, 5m, 2h, 7d or 0s",
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$",
        description="a name such as big-node: a-z, 0-9, - and .",
    ),
]
Title = Annotated[str, Meta(min_length=1, max_length=80)]
Amount = Annotated[str | int | float, Meta(description="a quantity such as 500m, 4 or 16Gi")]
Share = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class _Part(Record, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the file; a field that nobody knows is refused."""


class NodeKind(_Part, frozen=True, kw_only=True):
    """Nodes that are alike."""

    machine: str
    """What ``plan --machine`` takes; files are looked for beside the experiment."""
    count: Annotated[int, Meta(ge=1, le=100_000)]
    name: Name | UnsetType = UNSET
    """How the nodes are called, with a number behind: ``big`` makes ``big-0``, ``big-1``; the
    default is ``node``, with a number where there are several kinds."""
    devices: str | UnsetType = UNSET
    """What ``plan --devices`` takes."""


class Configuration(_Part, frozen=True, kw_only=True):
    """A kubelet's configuration to compare."""

    name: Title
    kubelet_configuration: Mapping[str, Any] | str | UnsetType = UNSET
    """A KubeletConfiguration, or the name of its file, which may have a section ``pinfold``."""
    config_dir: str | UnsetType = UNSET
    """A folder of drop-ins over it, what ``plan --config-dir`` takes."""
    kubelet_version: str | UnsetType = UNSET
    """What ``plan --kubelet-version`` takes."""


class Trace(_Part, frozen=True, kw_only=True):
    """A public trace, by its reader."""

    form: Literal["azure2017", "openb"]
    folder: str | UnsetType = UNSET
    """Where its files are; the default is what ``--traces`` says."""
    part: Literal["dev", "test"] | UnsetType = UNSET
    """azure2017: ``dev`` or ``test`` (the default)."""
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Of the arrivals, drawn from the seed."""


class CSVArrivals(_Part, frozen=True, kw_only=True):
    """A table with a header: at, lifetime, cpu, memory and, if wanted, count, qos, devices."""

    file: str
    """Looked for beside the experiment."""


class SizeShare(_Part, frozen=True, kw_only=True):
    """One of the sizes of a mix."""

    weight: Annotated[float, Meta(gt=0, le=1e9)]
    cpu: Amount
    """A quantity."""
    memory: Amount
    """A quantity."""
    devices: Mapping[str, Annotated[int, Meta(ge=1, le=100_000)]] = {}
    """Name of an extended resource -> how many."""


class Lifetimes(_Part, frozen=True, kw_only=True):
    """How long pods run."""

    distribution: Literal["exponential", "fixed", "lognormal", "pareto"] = "exponential"
    mean: Duration
    shape: Annotated[float, Meta(gt=0, le=10)] | UnsetType = UNSET
    """lognormal: sigma (default 1); pareto: alpha, above 1 (default 1.5)."""


class Wave(_Part, frozen=True, kw_only=True):
    """How the rate rises and falls; the mean stays."""

    period: Duration = "1d"
    amplitude: Share = 0.5
    """0.5: between half and one and a half times the mean rate."""


class Synthetic(_Part, frozen=True, kw_only=True):
    """Arrivals by chance: a Poisson process."""

    per_hour: Annotated[float, Meta(gt=0, le=1e9)]
    """Mean rate, of all pods."""
    sizes: Annotated[Sequence[SizeShare], Meta(min_length=1)]
    lifetimes: Lifetimes
    wave: Wave | UnsetType = UNSET


class Arrivals(_Part, frozen=True, kw_only=True):
    """Where the pods come from: just one of the three."""

    trace: Trace | UnsetType = UNSET
    csv: CSVArrivals | UnsetType = UNSET
    synthetic: Synthetic | UnsetType = UNSET


class Guaranteed(_Part, frozen=True, kw_only=True):
    """Which pods are Guaranteed; the others have the same requests, and no limits."""

    pods: Literal["whole", "traced", "all", "none"] = "whole"
    """``whole``: those that ask for whole CPUs; ``traced``: as the trace tells."""
    multiple_of: Annotated[int, Meta(ge=1, le=128)] = 1
    """Of these, those that ask for a multiple of so many CPUs: 2 where ``full-pcpus-only`` refuses
    whoever asks for half a core."""
    share: Share = 1.0
    """Of these, drawn from the seed."""


class Scheduler(_Part, frozen=True, kw_only=True):
    """How a node is chosen."""

    scorer: Literal["LeastAllocated", "MostAllocated", "TopologyAware"] = "LeastAllocated"
    """The first two are kube-scheduler's, of cpu and memory; ``TopologyAware`` asks what the
    node's kubelet would do, and takes where it lets in with the fewest NUMA nodes."""
    candidates: Annotated[int, Meta(ge=1, le=1000)] = 16
    """TopologyAware: how many nodes it asks at most, in the order of LeastAllocated."""


class Retry(_Part, frozen=True, kw_only=True):
    """What happens to a pod that found no place."""

    backoff: Duration = "10s"
    """After this time there is a new pod, which is scheduled without memory of the node."""
    limit: Annotated[int, Meta(ge=0, le=1000)] = 5
    """How often at most; 0: it is given up at once."""


class Stop(_Part, frozen=True, kw_only=True):
    """When a run ends: the first of these, or the last arrival."""

    after: Duration | UnsetType = UNSET
    arrivals: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class Sweep(_Part, frozen=True, kw_only=True):
    """A grid: each configuration with each combination of these values."""

    fields: Mapping[str, Annotated[Sequence[Any], Meta(min_length=1)]] = {}
    """Field of the KubeletConfiguration, with dots (``cpuManagerPolicyOptions.full-pcpus-only``)
    -> its values."""
    nodes: Sequence[Annotated[float, Meta(gt=0, le=100)]] = ()
    """Times the counts of all kinds."""


class NodesNeeded(_Part, frozen=True, kw_only=True):
    """Look for the smallest fleet with which as many pods are let in."""

    acceptance: Share | UnsetType = UNSET
    """The share of pods; the default is what the first configuration lets in."""
    most: Annotated[float, Meta(gt=0, le=100)] = 4.0
    """Times the counts of all kinds, at most."""
    precision: Annotated[float, Meta(gt=0, le=1)] = 0.01
    """Where the search stops."""


class Spec(_Part, frozen=True, kw_only=True):
    """All that is to be said."""

    nodes: Annotated[Sequence[NodeKind], Meta(min_length=1)]
    configurations: Annotated[Sequence[Configuration], Meta(min_length=1)]
    arrivals: Arrivals
    guaranteed: Guaranteed = Guaranteed()
    scheduler: Scheduler = Scheduler()
    retry: Retry = Retry()
    seeds: Annotated[Sequence[Seed], Meta(min_length=1)] = (1,)
    warm_up: Duration = "0"
    stop: Stop = Stop()
    sweep: Sweep | UnsetType = UNSET
    nodes_needed: NodesNeeded | UnsetType = UNSET


class Metadata(_Part, frozen=True, kw_only=True):
    """What it is called."""

    name: Title


class Experiment(_Part, frozen=True, kw_only=True):
    """What is to be simulated: nodes, configurations to compare, and the pods that arrive."""

    api_version: Literal["pinfold.dev/v1alpha1"]
    kind: Literal["Experiment"]
    metadata: Metadata
    spec: Spec
