"""Where the kubelet's own answer is broken, and the two sets of rules that follow from it.

Every difference between what a kubelet answers and what Pinfold answers lives here: the
allocation asks :class:`AllocationRules` at the places where upstream goes wrong.
``KUBELET`` reproduces upstream bit for bit (``pinfold plan`` shows it, or refuses where it is no
valid placement); ``SOUND`` gives the answer that upstream's algorithm means to give.
``docs/kubelet-differences.md`` lists each fault for users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct


class KubeletFault(Struct, frozen=True):
    """One fault of the kubelet: what it is, and what Pinfold does instead."""

    slug: str
    title: str
    upstream: str
    plan: str
    agent: str


DISTRIBUTION_HANGS: Final = KubeletFault(
    slug="distribution-hangs",
    title="A distributed request that never returns",
    upstream="With distribute-cpus-across-numa and CPUs given in whole cores, the loop that hands "
    "out the remainder makes no progress when the chosen NUMA nodes have enough free CPUs in sum "
    "but none has a whole group left; the pod's admission never ends and holds the manager's "
    "lock.",
    plan="The pod is refused with UnexpectedAdmissionError and a message that names this fault.",
    agent="NUMA nodes that cannot give a whole group are passed over.",
)

CPUS_NOT_FREE: Final = KubeletFault(
    slug="cpus-not-free",
    title="CPUs handed out that were not free",
    upstream="A core or socket counts as free when its number of free CPUs equals the machine's "
    "average (CPUs divided by cores, rounded down). On machines with uneven cores or sockets "
    "(hybrid CPUs, offline threads) partly used ones pass that test, and all their CPUs are "
    "taken.",
    plan="The pod is refused with UnexpectedAdmissionError and a message that names the CPUs.",
    agent="A core or socket is free when all of its own CPUs are free.",
)

COMBINATION_OVERWRITTEN: Final = KubeletFault(
    slug="combination-overwritten",
    title="The best NUMA combination replaced by a later one",
    upstream="The distribution remembers its best combination of NUMA nodes in a buffer that later "
    "combinations overwrite; possible with 5 or more NUMA nodes. The placement is valid, "
    "but may be less balanced than the best.",
    plan="The kubelet's real placement is shown.",
    agent="The best combination is kept.",
)

MEMORY_WRAPS_AROUND: Final = KubeletFault(
    slug="memory-wraps-around",
    title="Memory given to containers that their pod does not have",
    upstream="With PodLevelResourceManagers nobody compares what exclusive containers request of "
    "memory or huge pages with what the pod as a whole requests. What they have beyond it is "
    "charged to no NUMA node, and the remainder for the other containers wraps around: they are "
    "assigned nearly 16 EiB.",
    plan="Manifests that an API server would refuse are not read, so that most such pods never get "
    "here; of others the kubelet's answer is shown.",
    agent="The pod is refused, with both amounts.",
)

NO_MEMORY_REFUSED: Final = KubeletFault(
    slug="no-memory-refused",
    title="Containers refused for want of memory that they do not ask for",
    upstream="With PodLevelResourceManagers outside topology manager scope pod, the containers of "
    "a pod with pod-level resources that share are sent through the allocation of memory, though "
    "they ask for none. Under the policies none and single-numa-node it finds no hints for "
    "nothing; under the others it may be given NUMA nodes that are in use. So most such pods are "
    "refused under memory manager policy Static.",
    plan="The kubelet's answer is shown.",
    agent="Such containers are left alone.",
)

BUBBLE_LEAKS: Final = KubeletFault(
    slug="bubble-leaks",
    title="CPUs of a refused pod that nobody gets back",
    upstream="With PodLevelResourceManagers and topology manager scope pod, a pod's CPUs are "
    "recorded before they are divided. Where exclusive containers ask for more than the pod as a "
    "whole, the pod is refused (UnexpectedAdmissionError), but its CPUs stay recorded as its own. "
    "They are given back with the last of its containers, of which none has any: so never, not "
    "even by a restart. An API server lets no such pod through; one that came in before it "
    "checked that, or past it, does it.",
    plan="Manifests that an API server would refuse are not read; a pod that the library is given "
    "is refused as by the kubelet, and pods after it find these CPUs taken.",
    agent="A pod that is refused has nothing.",
)

BUBBLE_TWICE: Final = KubeletFault(
    slug="bubble-twice",
    title="A pod that is admitted again gets its CPUs and memory a second time",
    upstream="With PodLevelResourceManagers and topology manager scope pod, a pod that ran before "
    "the kubelet was started anew is admitted again, and a set of CPUs is chosen for it once more, "
    "as is its memory (kubernetes/kubernetes#140989). The first set is in no record then: the next "
    "start fails, since the recorded CPUs are not those of the machine. Where some container "
    "shares its pod's CPUs, the policies restricted and single-numa-node reject the pod instead, "
    "because its CPU hints are empty. A resize that is admitted does the same.",
    plan="The pods of a plan are new, and have theirs once. A resize is refused with a message "
    "that names this fault.",
    agent="A pod keeps the CPUs and the memory that it has.",
)

FAULTS: Final = (
    DISTRIBUTION_HANGS,
    CPUS_NOT_FREE,
    COMBINATION_OVERWRITTEN,
    MEMORY_WRAPS_AROUND,
    NO_MEMORY_REFUSED,
    BUBBLE_LEAKS,
    BUBBLE_TWICE,
)


class UpstreamFaultError(Exception):
    """The kubelet has no valid answer to this request.

    ``fault`` says which fault it is; the message is for people.
    """

    def __init__(self, fault: KubeletFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class AllocationRules(Struct, frozen=True):
    """How the allocation behaves at the places where the kubelet is at fault."""

    average_sizes: bool
    """Judge cores and sockets by the machine's average size (``CPUS_NOT_FREE``)."""
    shared_combinations: bool
    """Let later combinations overwrite the best one (``COMBINATION_OVERWRITTEN``)."""
    may_hang: bool
    """Raise ``DISTRIBUTION_HANGS`` where upstream loops for ever; else pass the subset over."""
    memory_wraps_around: bool
    """Let containers have more memory than their pod as a whole (``MEMORY_WRAPS_AROUND``)."""
    allocates_no_memory: bool
    """Look for the NUMA nodes of no memory at all (``NO_MEMORY_REFUSED``)."""
    leaks_bubbles: bool
    """Record a pod's bubble before it is known that its parts fit (``BUBBLE_LEAKS``)."""
    allocates_pods_again: bool
    """Give a pod that has CPUs and memory as a whole the same once more (``BUBBLE_TWICE``)."""

    def kept_combination(
        self, combination: Sequence[int], items: Sequence[int], *, stopped: bool
    ) -> Sequence[int]:
        """What is left of ``combination`` (of ``items``, in order) once the search has ended.

        ``stopped``: the search ended at the combination after this one, having written it.
        """
        if not self.shared_combinations:
            return combination
        return _overwritten(combination, items, stopped=stopped)


KUBELET: Final = AllocationRules(
    average_sizes=True,
    shared_combinations=True,
    may_hang=True,
    memory_wraps_around=True,
    allocates_no_memory=True,
    leaks_bubbles=True,
    allocates_pods_again=True,
)
SOUND: Final = AllocationRules(
    average_sizes=False,
    shared_combinations=False,
    may_hang=False,
    memory_wraps_around=False,
    allocates_no_memory=False,
    leaks_bubbles=False,
    allocates_pods_again=False,
)


def _overwritten(
    combination: Sequence[int], items: Sequence[int], *, stopped: bool
) -> Sequence[int]:
    """Replay what appending to a shared Go slice does to an earlier combination.

    A slice's buffer grows to 1, 2, 4, 8, 16 ... elements.  A combination of size k therefore
    shares its buffer with every other that has the same first ``own`` elements, where ``own`` is
    the length at which that buffer was made (1, 2, 3, 5, 9, 17 ...), and its tail is that of the
    last of those that was visited.
    """
    size = len(combination)
    own = 1
    capacity = 1
    while capacity < size:
        own = capacity + 1
        capacity *= 2
    tail = size - own
    if tail <= 0:
        return combination
    head = list(combination[:own])
    if not stopped:
        return head + list(items[len(items) - tail :])
    following = _next_combination(combination, items)
    if following is None or list(following[:own]) != head:
        return combination
    return following


def _next_combination(combination: Sequence[int], items: Sequence[int]) -> list[int] | None:
    """The combination after this one in the order of nested loops over ``items``."""
    where = [items.index(item) for item in combination]
    size, count = len(where), len(items)
    for position in reversed(range(size)):
        if where[position] < count - (size - position):
            start = where[position] + 1
            where[position:] = range(start, start + size - position)
            return [items[index] for index in where]
    return None
