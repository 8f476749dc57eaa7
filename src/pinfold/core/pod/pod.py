"""Pods and containers, as far as resources go: QoS class, exclusivity, what is requested.

Source: the Kubernetes API (``core/v1``) and the kubelet's reading of it: ``qos.ComputePodQOS``,
``staticPolicy.guaranteedCPUs``, ``resource.PodRequests`` (1.34).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.pod.annotations import MIXED_CPUS
from pinfold.core.values.errors import wrong_type
from pinfold.core.values.quantity import Quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
HUGEPAGES_PREFIX: Final = "hugepages-"
SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000
SYSTEM_NODE_CRITICAL: Final = "system-node-critical"

Resources = Mapping[str, Quantity]
"""Resource name -> quantity (the API's ``ResourceList``)."""

NO_RESOURCES: Final[Resources] = MappingProxyType({})


def check_resources(name: str, resources: object) -> None:
    """Make sure that this is a mapping from names to quantities; ``name`` is for the error.

    Raises:
        TypeError: it is another thing.
    """
    if resources is NO_RESOURCES:
        return
    if not isinstance(resources, Mapping):
        raise wrong_type(name, "a mapping such as {'cpu': Quantity.parse('2')}", resources)
    for key, quantity in resources.items():
        if not isinstance(quantity, Quantity):
            raise wrong_type(f"{name}[{key!r}]", "a Quantity, as Quantity.parse reads", quantity)


class QOSClass(Enum):
    """The API's ``PodQOSClass``."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class Container(Struct, frozen=True):
    """A container's name and resources; ``restart_policy`` matters for init containers only.

    Requests are taken as they are: what the API server fills in of limits does
    :func:`apply_defaults`.

    Raises:
        TypeError: a name that is no text, or resources that map no names to quantities.

    >>> Container("c", requests={"cpu": Quantity.parse("2")}).is_sidecar
    False
    """

    name: str
    requests: Resources = NO_RESOURCES
    limits: Resources = NO_RESOURCES
    restart_policy: str | None = None

    def __post_init__(self) -> None:
        """Check the types."""
        if not isinstance(self.name, str):
            raise wrong_type("name", "a text", self.name)
        check_resources("requests", self.requests)
        check_resources("limits", self.limits)

    @property
    def is_sidecar(self) -> bool:
        """Whether, as an init container, it keeps running beside the others."""
        return self.restart_policy == "Always"


class PodResources(Struct, frozen=True):
    """Resources of the pod as a whole (``spec.resources``)."""

    requests: Resources = NO_RESOURCES
    limits: Resources = NO_RESOURCES

    def __post_init__(self) -> None:
        """Check the types."""
        check_resources("requests", self.requests)
        check_resources("limits", self.limits)


class Pod(Struct, frozen=True, dict=True):
    """A pod as a node sees it; ``qos`` is computed.

    ``uid`` tells pods apart; in a manifest that has none it is ``namespace/name``.

    Raises:
        TypeError: names that are no texts, or containers that are no tuple of Container.

    >>> two = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi")}
    >>> Pod("default/p", "p", containers=(Container("c", two, two),)).qos
    <QOSClass.GUARANTEED: 'Guaranteed'>
    """

    uid: str
    name: str
    namespace: str = "default"
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    overhead: Resources = NO_RESOURCES
    resources: PodResources | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    priority_class_name: str | None = None
    creation_timestamp: str | None = None
    node_name: str = ""
    """The node that it is bound to; "" for none."""
    static: bool = False
    scale_down_grace_period: int | None = None
    """``scaleDownGracePeriodSeconds`` of KEP-5554."""
    passed_over: PodResources | None = None
    """Resources of its own that do not count (see :func:`pass_over_resources`)."""

    def __post_init__(self) -> None:
        """Check the types."""
        for name in ("uid", "name", "namespace"):
            if not isinstance(getattr(self, name), str):
                raise wrong_type(name, "a text", getattr(self, name))
        for name in ("init_containers", "containers"):
            given = getattr(self, name)
            if not isinstance(given, tuple) or any(not isinstance(c, Container) for c in given):
                raise wrong_type(name, "a tuple of Container", given)
        check_resources("overhead", self.overhead)

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @cached_property
    def qos(self) -> QOSClass:
        """The QoS class."""
        return compute_qos(self)

    @cached_property
    def has_pod_level_resources(self) -> bool:
        """Whether the pod as a whole asks for anything that is given out to a whole pod.

        So it does where that is passed over: the managers leave such a pod alone all the same.
        """
        own = self.resources or self.passed_over
        return own is not None and any(
            is_pod_level_resource(name) for name in (*own.requests, *own.limits)
        )

    @cached_property
    def mixed(self) -> frozenset[str]:
        """The containers that are to use the shared pool besides CPUs of their own.

        An annotation says so; a kubelet knows no such (see :func:`unmixed`).
        """
        if not self.annotations:
            return frozenset()
        return frozenset(
            one.name for one in self.all_containers if MIXED_CPUS.of(self.annotations, one.name)
        )

    @cached_property
    def all_containers(self) -> tuple[Container, ...]:
        """Init containers, then containers, in the manifest's order."""
        return (*self.init_containers, *self.containers)

    @property
    def is_critical(self) -> bool:
        """Whether it may push others out: a static pod, or one of a system priority."""
        return self.static or (self.priority or 0) >= SYSTEM_CRITICAL_PRIORITY

    @property
    def is_node_critical(self) -> bool:
        """Whether the node cannot do without it (priority class ``system-node-critical``)."""
        return self.is_critical and self.priority_class_name == SYSTEM_NODE_CRITICAL


T = TypeVar("T")


def once_a_pod(compute: Callable[[Pod], T]) -> Callable[[Pod], T]:
    """Have what is computed of a pod remembered with the pod, which never changes."""
    key = f"{compute.__module__}.{compute.__name__}"

    @wraps(compute)
    def remembered(pod: Pod) -> T:
        known: dict[str, T] = pod.__dict__
        if key not in known:
            known[key] = compute(pod)
        return known[key]

    return remembered


def is_pod_level_resource(name: str) -> bool:
    """Whether a pod as a whole may ask for it (cpu, memory, hugepages)."""
    return name in (CPU, MEMORY) or is_hugepages(name)


def is_hugepages(name: str) -> bool:
    """Whether a resource is one of huge pages; the name need not say a size that there is."""
    return name.startswith(HUGEPAGES_PREFIX)


def compute_qos(pod: Pod) -> QOSClass:
    """The QoS class: by the pod's own ``resources`` if it has any (even empty ones)."""
    sources: Iterable[Container | PodResources] = pod.all_containers
    if pod.resources is not None:
        sources = (pod.resources,)
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    guaranteed = True
    for source in sources:
        _add(requests, _compute_resources(source.requests))
        found = _compute_resources(source.limits)
        _add(limits, found)
        guaranteed = guaranteed and len(found) == 2
    if not requests and not limits:
        return QOSClass.BEST_EFFORT
    if guaranteed and requests == limits:
        return QOSClass.GUARANTEED
    return QOSClass.BURSTABLE


def _compute_resources(resources: Resources) -> dict[str, Quantity]:
    return {
        name: resources[name]
        for name in (CPU, MEMORY)
        if name in resources and resources[name].sign > 0
    }


def _add(total: dict[str, Quantity], more: Resources) -> None:
    for name, quantity in more.items():
        total[name] = total[name] + quantity if name in total else quantity


def _raise_to(most: dict[str, Quantity], other: Resources) -> None:
    for name, quantity in other.items():
        if name not in most or most[name] < quantity:
            most[name] = quantity


def guaranteed_cpus(pod: Pod, container: Container) -> int:
    """The exclusive CPUs that a container asks for: 0 unless Guaranteed with a whole number.

    Of one that is mixed it is the whole part of the number.
    """
    if pod.qos is not QOSClass.GUARANTEED:
        return 0
    request = container.requests.get(CPU)
    if request is None:
        return 0
    milli = request.milli_value()
    return milli // 1000 if milli % 1000 == 0 or container.name in pod.mixed else 0


@once_a_pod
def exclusive_requests(pod: Pod) -> Mapping[str, int]:
    """The containers that are to own CPUs, with their number."""
    if pod.has_pod_level_resources:
        return {}
    asked = {container.name: guaranteed_cpus(pod, container) for container in pod.all_containers}
    return {name: count for name, count in asked.items() if count}


def unmixed(pod: Pod) -> Pod:
    """The pod as a kubelet sees it, which knows no mixed containers."""
    if not pod.mixed:
        return pod
    return replace(pod, annotations=MIXED_CPUS.without(pod.annotations))


def pass_over_resources(pod: Pod) -> Pod:
    """The pod as a kubelet sees it that passes ``spec.resources`` over.

    So it does where the feature gate ``PodLevelResources`` is off: class, requests and quotas are
    of the containers alone.  Its managers do not heed the gate, and give nothing to such a pod.
    """
    if pod.resources is None:
        return pod
    return replace(pod, resources=None, passed_over=pod.resources)


@once_a_pod
def pod_guaranteed_cpus(pod: Pod) -> int:
    """The exclusive CPUs that a pod needs at any one time."""
    return most_at_once(pod, lambda container: guaranteed_cpus(pod, container))


def most_at_once(pod: Pod, amount: Callable[[Container], int]) -> int:
    """The most that containers have at any one time, each having its ``amount`` while it runs."""
    sidecars = most_for_init = 0
    for container in pod.init_containers:
        here = amount(container)
        if container.is_sidecar:
            sidecars += here
        else:
            most_for_init = max(most_for_init, sidecars + here)
    running = sum(amount(container) for container in pod.containers)
    return max(most_for_init, running + sidecars)


def container_requests(pod: Pod) -> dict[str, Quantity]:
    """What the containers request together: the most that runs at any one time."""
    return _aggregate(
        [container.requests for container in pod.containers],
        [(init.is_sidecar, init.requests) for init in pod.init_containers],
    )


@once_a_pod
def container_limits(pod: Pod) -> Mapping[str, Quantity]:
    """What the containers may use together at most, where they have limits."""
    return _aggregate(
        [container.limits for container in pod.containers],
        [(init.is_sidecar, init.limits) for init in pod.init_containers],
    )


def _aggregate(
    running: Iterable[Resources], initial: Iterable[tuple[bool, Resources]]
) -> dict[str, Quantity]:
    """The most at any one time; ``initial`` are init containers, each with "is a sidecar"."""
    total: dict[str, Quantity] = {}
    for resources in running:
        _add(total, resources)
    sidecars: dict[str, Quantity] = {}
    most_for_init: dict[str, Quantity] = {}
    for is_sidecar, resources in initial:
        if is_sidecar:
            _add(total, resources)
            _add(sidecars, resources)
            _raise_to(most_for_init, sidecars)
        else:
            here = dict(resources)
            _add(here, sidecars)
            _raise_to(most_for_init, here)
    _raise_to(total, most_for_init)
    return total


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """What the node must have free for the pod: containers, pod level, overhead."""
    total = container_requests(pod)
    if pod.resources is not None:
        total |= {n: q for n, q in pod.resources.requests.items() if is_pod_level_resource(n)}
    _add(total, pod.overhead)
    return total


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """What the pod may use at most; overhead counts where there is a limit at all."""
    total = dict(container_limits(pod))
    if pod.resources is not None:
        total |= {n: q for n, q in pod.resources.limits.items() if is_pod_level_resource(n)}
    for name, quantity in pod.overhead.items():
        if name in total and not total[name].is_zero:
            total[name] += quantity
    return total


def pods_only(pods: Iterable[Pod]) -> list[Pod]:
    """Several pods as a list.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(pods, Iterable):
        raise wrong_type("pods", "several pods, such as the pods of read_manifests", pods)
    found = list(pods)
    for pod in found:
        if not isinstance(pod, Pod):
            raise wrong_type("each of the pods", "a Pod", pod)
    return found
