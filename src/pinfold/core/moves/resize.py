"""Whether a running container can have another number of exclusive CPUs, and which ones.

The rules and the names of the errors are those of the enhancement proposal KEP-5554 (alpha is aimed
at Kubernetes 1.38; its text of September 2026).  The CPUs themselves are chosen by the static
policy and judged by the topology manager, as at an admission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.cpu.hints import cpu_hints
from pinfold.core.cpu.static_policy import (
    CPUAllocation,
    PodTransaction,
    SMTAlignmentError,
    StaticPolicy,
)
from pinfold.core.kubelet.faults import UpstreamFaultError
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.moves.owners import Owner, Wish
from pinfold.core.pod.pod import CPU, Container, Pod, guaranteed_cpus
from pinfold.core.topology_manager.hints import (
    AllocationError,
    ResourceHints,
    TopologyHint,
    numa_mask,
)
from pinfold.core.topology_manager.manager import Admission, AffinityDecision
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

PROHIBITED: Final = "prohibitedCPUAllocationError"
INCONSISTENT: Final = "inconsistentCPUAllocationError"
NO_BASELINE: Final = "getBaselineCPUSetError"
NOT_ALLOCATED: Final = "resizeAllocateCPUsError"

RESIZE_REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        PROHIBITED: "fewer CPUs than the container was admitted with, or not those that it is to "
        "keep",
        INCONSISTENT: "from the shared pool to exclusive CPUs or back, or a container that has "
        "none of its own",
        NO_BASELINE: "it is not known which CPUs the container was admitted with (called "
        "getOriginalCPUSetError before)",
        NOT_ALLOCATED: "the CPUs cannot be had: too few are free, cores would not be whole, or the "
        "topology manager's policy does not hold",
    }
)
"""Why a resize is infeasible; an infeasible resize changes nothing."""

_EMPTY: Final = CPUSet()


class ResizeAsk(Struct, frozen=True):
    """What is asked for, and what there is.

    Attributes:
        pod: the pod as it is now.
        container: whose CPUs are to change.
        cpus: how many it is to have; 0 for what is no whole number, and so no exclusive CPUs.
        held: its CPUs; None: it has none of its own.
        baseline: those that it was admitted with; None: nobody knows.
        free: CPUs that may be given to it now.
        siblings: what the pod's other containers have, by name, without init containers, which
            have ended.
        coming: what is left to it once a shrink under way is done; None without one.
        keep: CPUs that it wants to keep (opt-in).
        below_baseline: it may have fewer than the baseline (opt-in).
    """

    pod: Pod
    container: str
    cpus: int
    held: CPUSet | None
    baseline: CPUSet | None
    free: CPUSet
    siblings: Mapping[str, CPUSet] = MappingProxyType({})
    coming: CPUSet | None = None
    keep: CPUSet = _EMPTY
    below_baseline: bool = False


class ResizeDecision(Struct, frozen=True):
    """The answer.

    Attributes:
        owner: who asked.
        before: the CPUs of now.
        after: those afterwards; the same where it is infeasible.
        baseline: what a later resize has to keep.
        reason: one of :data:`RESIZE_REASONS`; None where it is feasible.
        message: for people; None where it is feasible.
        kept: CPUs that were not up for choice.
        allocation: how the others were chosen; None where none were.
        affinities: the topology manager's merges.
    """

    owner: Owner
    before: CPUSet
    after: CPUSet
    baseline: CPUSet
    reason: str | None = None
    message: str | None = None
    kept: CPUSet = _EMPTY
    allocation: CPUAllocation | None = None
    affinities: tuple[AffinityDecision, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it can be done."""
        return self.reason is None

    def wish(self, delay: float = 0.0) -> Wish:
        """The move that carries it out."""
        return Wish(self.owner, self.after, keep=self.kept & self.after, delay=delay)


class _Choice(Struct, frozen=True):
    """What the CPUs are chosen from: all of ``kept``, the rest of ``others``."""

    kept: CPUSet
    others: CPUSet

    def shown_to(self, policy: StaticPolicy) -> _Choice:
        """The same; under ``full-pcpus-only`` without CPUs of cores that it cannot have whole."""
        if not policy.options.full_pcpus_only:
            return self
        every = (self.kept | self.others).mask
        cores = policy.topology.cores.values()
        whole = CPUSet.from_mask(sum(core for core in cores if core & ~every == 0))
        return replace(self, others=self.others & whole)


def decide_resize(ask: ResizeAsk, policy: StaticPolicy | None, admit: Admit) -> ResizeDecision:
    """Decide about a resize; nothing is changed.

    A grown set has all CPUs of the one before.  A shrunk one is a part of it and has the baseline,
    or, below it, is a part of the baseline but for what is to be kept;
    while an earlier shrink is under way a further one is a part of what was announced, and one that
    ends below the number before it has what was announced.

    Args:
        ask: what is asked for.
        policy: the static policy; None under policy none.
        admit: asks all managers, with these CPUs among them.
    """
    held, baseline = ask.held or _EMPTY, ask.baseline or _EMPTY
    if any(one.name == ask.container and not one.is_sidecar for one in ask.pod.init_containers):
        return _infeasible(
            ask,
            INCONSISTENT,
            f"container {ask.container} is an init container, which runs before the others and "
            "ends; only containers and sidecars are resized",
        )
    if policy is None:
        return _infeasible(ask, INCONSISTENT, "CPU manager policy none: nobody has CPUs of his own")
    if ask.pod.has_pod_level_resources:
        return _infeasible(
            ask,
            INCONSISTENT,
            keeps_its_part(ask.container),
        )
    if not held or not guaranteed_cpus(ask.pod, _named(ask)):
        return _infeasible(
            ask,
            INCONSISTENT,
            f"container {ask.container} runs on the shared pool, and stays there; create it anew",
        )
    refusal = _refusal(ask, held)
    if refusal is not None:
        return _infeasible(ask, *refusal)
    owner = Owner(ask.pod.uid, ask.container)
    if ask.cpus == len(held):
        return ResizeDecision(owner, held, held, baseline, kept=held)
    provider = ResizedCPUs(policy, ask, _choice(ask, held, baseline).shown_to(policy))
    pod = resized(ask.pod, ask.container, ask.cpus)
    admission = admit(pod, _container(pod, ask.container), provider)
    if not admission.admitted:
        refused = _infeasible(ask, NOT_ALLOCATED, f"{admission.reason}: {admission.message}")
        return replace(refused, affinities=admission.decisions)
    return ResizeDecision(
        owner,
        held,
        provider.after,
        baseline & provider.after,
        kept=provider.choice.kept,
        allocation=provider.allocation,
        affinities=admission.decisions,
    )


def keeps_its_part(container: str) -> str:
    """Why a container is not resized whose pod asks for resources as a whole."""
    return (
        f"container {container} is of a pod that asks for resources as a whole, and keeps what it "
        "has of these; create the pod anew"
    )


def _infeasible(ask: ResizeAsk, reason: str, message: str) -> ResizeDecision:
    held, baseline = ask.held or _EMPTY, ask.baseline or _EMPTY
    return ResizeDecision(Owner(ask.pod.uid, ask.container), held, held, baseline, reason, message)


def resized(pod: Pod, name: str, cpus: int) -> Pod:
    """The pod with another number of CPUs for one of its containers.

    What a mixed one asks for of the shared pool, the fraction, stays as it is.
    """

    def with_cpus(container: Container) -> Container:
        if container.name != name:
            return container
        shared = _shared_part(pod, name)
        amount = Quantity.parse(f"{1000 * cpus + shared}m" if shared else str(cpus))
        return replace(
            container,
            requests={**container.requests, CPU: amount},
            limits={**container.limits, CPU: amount},
        )

    return replace(
        pod,
        init_containers=tuple(map(with_cpus, pod.init_containers)),
        containers=tuple(map(with_cpus, pod.containers)),
    )


def exclusive_in(pod: Pod, name: str, asked: float) -> int:
    """How many exclusive CPUs a container of a running pod asks for; 0 for what is no such number.

    A mixed one may name its part of the shared pool besides, as it is.
    """
    whole, rest = divmod(round(1000 * asked), 1000)
    return whole if rest in {0, _shared_part(pod, name)} else 0


def _shared_part(pod: Pod, name: str) -> int:
    """What a mixed container asks for of the shared pool, in thousandths of a CPU."""
    had = _container(pod, name).requests.get(CPU)
    return had.milli_value() % 1000 if had is not None and name in pod.mixed else 0


def _container(pod: Pod, name: str) -> Container:
    return next(one for one in pod.all_containers if one.name == name)


def _refusal(ask: ResizeAsk, held: CPUSet) -> tuple[str, str] | None:
    """Why it is infeasible whatever is free."""
    who, cpus = f"container {ask.container}", ask.cpus
    if cpus < 1:
        shared = _shared_part(ask.pod, ask.container)
        besides = f", its part of the shared pool, {shared}m, besides or not" if shared else ""
        return INCONSISTENT, (
            f"{who} has exclusive CPUs, and is to ask for a whole number of them{besides}"
        )
    if cpus == len(held):
        return None
    if ask.baseline is None:
        return NO_BASELINE, f"it is not known which CPUs {who} was admitted with; create it anew"
    if cpus < len(ask.baseline) and not ask.below_baseline:
        return PROHIBITED, (
            f"{who} was admitted with {len(ask.baseline)} CPUs ({ask.baseline}) and keeps them; "
            f"{cpus} are too few"
        )
    if cpus > len(held):
        return None  # it keeps all that it has
    source = ask.coming if ask.coming is not None and cpus <= len(ask.coming) else held
    if lost := ask.keep - source:
        return PROHIBITED, f"{who} cannot keep CPUs {lost}, which are not its own any more"
    if len(ask.keep) > cpus:
        return PROHIBITED, f"{who} is to keep CPUs {ask.keep}, which are more than {cpus}"
    if not ask.below_baseline and len(ask.keep | ask.baseline) > cpus:
        return PROHIBITED, (
            f"{who} keeps CPUs {ask.baseline}, which it was admitted with; with {ask.keep} these "
            f"are more than {cpus}"
        )
    return None


def _named(ask: ResizeAsk) -> Container:
    return _container(ask.pod, ask.container)


def _choice(ask: ResizeAsk, held: CPUSet, baseline: CPUSet) -> _Choice:
    if ask.cpus > len(held):
        return _Choice(held, ask.free - held)
    source, kept = held, ask.keep
    if ask.coming is not None:
        if ask.cpus <= len(ask.coming):
            source = ask.coming
        elif len(kept | ask.coming) <= ask.cpus:
            kept |= ask.coming
    own = kept | (baseline & source)
    # Below the baseline it stays within it: there the topology manager placed the container.
    return _Choice(own, source - own) if len(own) <= ask.cpus else _Choice(kept, own - kept)


class ResizedCPUs:
    """The CPU manager in a resize, as a hint provider of the topology manager.

    ``after`` and ``allocation`` are there once it has allocated.
    """

    def __init__(self, policy: StaticPolicy, ask: ResizeAsk, choice: _Choice) -> None:
        self.policy = policy
        self.ask = ask
        self.choice = choice
        self.after = _EMPTY
        self.allocation: CPUAllocation | None = None

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The NUMA affinities that could serve the container, all with what it keeps."""
        del pod, container
        return self._hints(self.choice.kept.mask, self.ask.cpus)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The NUMA affinities that could serve the pod, all with what its containers have."""
        del pod
        beside = 0
        for cpus in self.ask.siblings.values():
            beside |= cpus.mask
        return self._hints(self.choice.kept.mask | beside, self.ask.cpus + beside.bit_count())

    def _hints(self, kept: int, requested: int) -> ResourceHints:
        others = self.choice.others.mask & ~kept
        policy = self.policy
        by_socket = policy.options.align_by_socket
        hints = cpu_hints(policy.topology, others, kept, requested, align_by_socket=by_socket)
        return {CPU: hints}

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Choose the CPUs: what is kept, and the rest as the static policy does.

        Where the topology manager has no affinity, it is that of what is kept.

        Raises:
            AllocationError: they cannot be had.
        """
        kept, others = self.choice.kept, self.choice.others
        if affinity.mask is None and kept:
            affinity = TopologyHint(self._nodes_of(kept), affinity.preferred)
        try:
            # The number as a whole: there are enough, and cores stay whole.
            options = StaticPolicyOptions(full_pcpus_only=self.policy.options.full_pcpus_only)
            everything = PodTransaction(pod.uid, (kept | others).mask)
            replace(self.policy, options=options).allocate(everything, pod, container)
            missing = self.ask.cpus - len(kept)
            part = resized(pod, container.name, missing)
            rest = PodTransaction(pod.uid, others.mask)
            given = self.policy.allocate(rest, part, _container(part, container.name), affinity)
        except UpstreamFaultError as error:
            raise AllocationError(f"{error} (kubelet fault {error.fault.slug})") from None
        if given is not None and given.not_free:
            raise AllocationError(f"the kubelet would hand out CPUs {given.not_free}")
        after = kept if given is None else kept | given.cpus
        self._check_cores(after)
        self.allocation = given
        self.after = after

    def _check_cores(self, after: CPUSet) -> None:
        """See that ``full-pcpus-only`` holds for all that it has: what it keeps may be in parts."""
        if not self.policy.options.full_pcpus_only:
            return
        cores = self.policy.topology.cores.values()
        parts = CPUSet.from_mask(
            sum(core & after.mask for core in cores if core & after.mask not in {0, core})
        )
        if parts:
            raise SMTAlignmentError(f"SMT Alignment Error: CPUs {parts} would be parts of cores")

    def _nodes_of(self, cpus: CPUSet) -> int:
        nodes = self.policy.topology.numa_nodes.items()
        return numa_mask(node for node, members in nodes if members & cpus.mask)


Admit = Callable[[Pod, Container, ResizedCPUs], Admission]
"""Admits the container of the resized pod, with this provider of CPUs among all others."""
