"""The topology manager: asks every hint provider, merges, admits or rejects, allocates in order.

Pure: the manager is a value without memory.  Whoever owns the state hands in providers that work
on a draft of it, and keeps or drops the draft by the :class:`Admission` that comes back, so one
admission can be all or nothing; the kubelet instead leaves what the containers before the failing
one were given until its next reconcile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Self, TypeVar

from msgspec import Struct

from pinfold.core.kubelet.versions import DEFAULT_VERSION, KubeletVersion
from pinfold.core.topology_manager.hints import (
    AllocationError,
    HintError,
    NUMAInfo,
    ResourceHints,
    TopologyHint,
)
from pinfold.core.topology_manager.merge import (
    NamedHints,
    blocking_resources,
    gather_hints,
    merge_hints,
)
from pinfold.core.topology_manager.policy import Policy, Scope, TopologyManagerOptions

TOPOLOGY_AFFINITY_ERROR: Final = "TopologyAffinityError"
UNEXPECTED_ADMISSION_ERROR: Final = "UnexpectedAdmissionError"
_TOPOLOGY_AFFINITY_MESSAGE: Final = "Resources cannot be allocated with Topology locality"
_POD_LEVEL_MESSAGES: Final = {
    Scope.CONTAINER: "Pod Scope pod with pod-level resources failed admission with a "
    "container-level topology manager",
    Scope.POD: "Pod Scope pod with pod-level resources failed admission under pod-scope topology "
    "manager",
}

NO_AFFINITY: Final = TopologyHint(None, preferred=False)
"""What a container without a decision has (upstream's zero ``TopologyHint``)."""


class TopologyManagerError(ValueError):
    """A configuration with which no kubelet would start; the message is the kubelet's."""


class Named(Protocol):
    """Anything with a container's name."""

    @property
    def name(self) -> str:
        """The container's name, unique in the pod."""


PodT_contra = TypeVar("PodT_contra", contravariant=True)
ContainerT_contra = TypeVar("ContainerT_contra", contravariant=True)
PodT = TypeVar("PodT")
ContainerT = TypeVar("ContainerT", bound=Named)


class HintProvider(Protocol[PodT_contra, ContainerT_contra]):
    """A resource manager in the eyes of the topology manager (upstream ``HintProvider``)."""

    def get_topology_hints(
        self, pod: PodT_contra, container: ContainerT_contra
    ) -> ResourceHints | None:
        """The ways to serve one container; ``None`` or nothing for no preference."""

    def get_pod_topology_hints(self, pod: PodT_contra) -> ResourceHints | None:
        """The ways to serve the pod as a whole."""

    def allocate(
        self, pod: PodT_contra, container: ContainerT_contra, affinity: TopologyHint
    ) -> None:
        """Give the container its share, within ``affinity`` where that has a mask.

        Raises:
            AllocationError: it cannot be done; one with a text attribute ``reason`` keeps that
                as the pod's reason, any other is an ``UnexpectedAdmissionError``.
        """

    def allocate_pod(self, pod: PodT_contra, affinity: TopologyHint) -> None:
        """Give a pod with pod-level resources its share as a whole, instead of its containers.

        Nothing, where the manager gives to containers only.

        Raises:
            AllocationError: as of :meth:`allocate`.
        """


class AffinityDecision(Struct, frozen=True):
    """One merge, with what it was made from.

    Attributes:
        container: the container it is for; ``None`` for the whole pod.
        policy: the policy that judged.
        answers: what each provider said, in provider order.
        best: the merged hint.
        admit: whether the policy accepts it.
        machine: the mask of all NUMA nodes.
    """

    container: str | None
    policy: Policy
    answers: tuple[ResourceHints | None, ...]
    best: TopologyHint
    admit: bool
    machine: int

    def blocking(self) -> tuple[tuple[int, str], ...]:
        """Why ``best`` is not preferred: (provider index, resource) that cannot be aligned.

        Inclusion-minimal: without any one of them the others could be.  Empty when nothing
        blocks.  Computed when asked for, since most decisions are never explained.
        """
        keys: list[tuple[int, str]] = []
        resources: list[NamedHints] = []
        for index, answer in enumerate(self.answers):
            for resource in gather_hints([answer]):
                keys.append((index, resource.resource))
                resources.append(resource)
        judged = self.policy.eligible(resources)
        return tuple(keys[i] for i in blocking_resources(dict(enumerate(judged)), self.machine))


class Admission(Struct, frozen=True):
    """The answer to one pod.

    Attributes:
        admitted: whether the pod may run.
        reason, message: the kubelet's texts; ``None`` when admitted.
        affinity: container name -> the hint stored for it, in the order of admission; a
            container that was not reached has none.
        decisions: the merges that were made, in order.
        failed_container: whose merge or allocation ended the admission; ``None`` when admitted
            or when the merge or the allocation of the whole pod failed.
        failed_provider: which of the providers failed to allocate; ``None`` when none did.
    """

    admitted: bool
    reason: str | None
    message: str | None
    affinity: Mapping[str, TopologyHint]
    decisions: tuple[AffinityDecision, ...]
    failed_container: str | None = None
    failed_provider: int | None = None


class TopologyManager(Struct, frozen=True):
    """Policy, scope and options on one machine; make one with :meth:`create`."""

    policy: Policy
    scope: Scope
    numa: NUMAInfo
    options: TopologyManagerOptions = TopologyManagerOptions()

    @classmethod
    def create(  # noqa: PLR0913, PLR0917 - what a kubelet is configured with
        cls,
        numa: NUMAInfo,
        policy: str,
        scope: str,
        options: Mapping[str, str],
        feature_gates: Mapping[str, bool] | None = None,
        version: KubeletVersion = DEFAULT_VERSION,
    ) -> Self:
        """Check a configuration in the kubelet's order (upstream ``NewManager``).

        With policy ``none`` scope and options are not looked at.

        Raises:
            PolicyOptionError: an option that is not acceptable.
            TopologyManagerError: anything else that would stop the kubelet.
        """
        if policy == Policy.NONE.value:
            return cls(Policy.NONE, Scope.CONTAINER, numa)
        parsed = TopologyManagerOptions.parse(options, feature_gates, version)
        if parsed.prefer_closest_numa_nodes:
            try:
                numa.check_distances()
            except HintError as error:
                raise TopologyManagerError(f"cannot discover NUMA topology: {error}") from None
        if len(numa.nodes) > parsed.max_allowable_numa_nodes:
            raise TopologyManagerError(
                "unsupported on machines with more than "
                f"{parsed.max_allowable_numa_nodes} NUMA Nodes"
            )
        try:
            known_policy = Policy(policy)
        except ValueError:
            raise TopologyManagerError(f'unknown policy: "{policy}"') from None
        try:
            known_scope = Scope(scope)
        except ValueError:
            raise TopologyManagerError(f'unknown scope: "{scope}"') from None
        return cls(known_policy, known_scope, numa, parsed)

    def merge(
        self, answers: Sequence[ResourceHints | None], container: str | None = None
    ) -> AffinityDecision:
        """Merge what the providers answered and let the policy judge (``Policy.Merge``)."""
        if self.policy is Policy.NONE:
            best = NO_AFFINITY
        else:
            resources = self.policy.eligible(gather_hints(answers))
            single = self.policy is Policy.SINGLE_NUMA_NODE
            best = merge_hints(
                [resource.hints for resource in resources],
                self.numa,
                prefer_closest=self.options.prefer_closest_numa_nodes and not single,
            )
            if single and best.mask == self.numa.mask:
                best = TopologyHint(None, best.preferred)
        admit = self.policy.accepts(preferred=best.preferred)
        return AffinityDecision(container, self.policy, tuple(answers), best, admit, self.numa.mask)

    def admit(
        self,
        pod: PodT,
        containers: Sequence[ContainerT],
        providers: Sequence[HintProvider[PodT, ContainerT]],
        *,
        pod_level: bool = False,
    ) -> Admission:
        """Admit a pod: merge by scope, then let every provider allocate for every container.

        Args:
            pod: handed to the providers as it is.
            containers: init containers, then containers, in the manifest's order.
            providers: in the order in which they allocate; the kubelet's is device manager,
                CPU manager, memory manager.
            pod_level: whether the pod has pod-level resources, and the gate
                ``PodLevelResourceManagers`` is on.  Under scope pod the providers then allocate
                once, for the whole pod.

        Any other exception than ``AllocationError`` of a provider is passed on.
        """
        decisions: list[AffinityDecision] = []
        affinity: dict[str, TopologyHint] = {}
        per_pod = self.policy is not Policy.NONE and self.scope is Scope.POD
        per_container = self.policy is not Policy.NONE and not per_pod
        no_locality = _POD_LEVEL_MESSAGES[self.scope] if pod_level else _TOPOLOGY_AFFINITY_MESSAGE
        best = NO_AFFINITY
        if per_pod:
            decisions.append(self.merge([p.get_pod_topology_hints(pod) for p in providers]))
            best = decisions[-1].best
            if not decisions[-1].admit:
                return _no_locality(no_locality, affinity, decisions)
        if per_pod and pod_level:
            affinity |= {container.name: best for container in containers}
            for number, provider in enumerate(providers):
                try:
                    provider.allocate_pod(pod, best)
                except AllocationError as error:
                    return _failed(error, None, number, affinity, decisions)
            return _admitted(affinity, decisions)
        for container in containers:
            if per_container:
                answers = [p.get_topology_hints(pod, container) for p in providers]
                decisions.append(self.merge(answers, container.name))
                best = decisions[-1].best
                if not decisions[-1].admit:
                    return _no_locality(no_locality, affinity, decisions)
            if self.policy is not Policy.NONE:
                affinity[container.name] = best
            for number, provider in enumerate(providers):
                try:
                    provider.allocate(pod, container, best)
                except AllocationError as error:
                    return _failed(error, container.name, number, affinity, decisions)
        return _admitted(affinity, decisions)


def admission_failure(error: AllocationError) -> tuple[str, str]:
    """Reason and message of a pod whose allocation failed (upstream ``GetPodAdmitResult``)."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason, str(error)
    return UNEXPECTED_ADMISSION_ERROR, f"Allocate failed due to {error}, which is unexpected"


def _failed(
    error: AllocationError,
    container: str | None,
    provider: int,
    affinity: Mapping[str, TopologyHint],
    decisions: Sequence[AffinityDecision],
) -> Admission:
    """The rejection of a pod to which a provider could not give what it asks for."""
    reason, message = admission_failure(error)
    return Admission(
        admitted=False,
        reason=reason,
        message=message,
        affinity=affinity,
        decisions=tuple(decisions),
        failed_container=container,
        failed_provider=provider,
    )


def _admitted(
    affinity: Mapping[str, TopologyHint], decisions: Sequence[AffinityDecision]
) -> Admission:
    return Admission(
        admitted=True, reason=None, message=None, affinity=affinity, decisions=tuple(decisions)
    )


def _no_locality(
    message: str, affinity: Mapping[str, TopologyHint], decisions: Sequence[AffinityDecision]
) -> Admission:
    return Admission(
        admitted=False,
        reason=TOPOLOGY_AFFINITY_ERROR,
        message=message,
        affinity=affinity,
        decisions=tuple(decisions),
        failed_container=decisions[-1].container,
    )
