"""Which pods are told in one row: replicas that differ in nothing but which CPUs they have."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.plan_view import ContainerRow, PodRow

LISTED: Final = 12
"""Up to so many pods, each has a row of its own."""

MOST_LINES: Final = 6
"""CPUs of replicas that need more lines are told together."""

_FEWEST: Final = 3
_EXTRAS: Final = 4

_RANDOM: Final = "[bcdfghjklmnpqrstvwxz2456789]"
"""The alphabet of what Kubernetes appends to names (``SafeEncodeString`` of apimachinery)."""
_SUFFIX: Final = re.compile(rf"(-{_RANDOM}{{6,10}})?-{_RANDOM}{{5}}$|-\d+$")


class ContainerEntry(Struct, frozen=True):
    """One container of each pod of a row; ``each`` has one for each pod."""

    each: tuple[ContainerRow, ...]

    @property
    def first(self) -> ContainerRow:
        """The container of the first pod; the others have its name and number of CPUs."""
        return self.each[0]

    @property
    def label(self) -> str:
        """Its name, with its kind where it is not an ordinary one."""
        return f"{self.first.name} ({self.first.kind})" if self.first.kind else self.first.name

    @property
    def cpus(self) -> CPUSet:
        """The CPUs of all of them."""
        return CPUSet.union_of(one.cpus for one in self.each)

    @property
    def count(self) -> str:
        """``4 CPUs``, or ``9 × 4 CPUs``."""
        number = len(self.first.cpus)
        text = f"{number} CPU{'s' * (number != 1)}"
        return f"{len(self.each)} × {text}" if len(self.each) > 1 else text

    @property
    def extras(self) -> tuple[str, ...]:
        """What they have beside CPUs: each line once, and how many more there are."""
        return _some(extra for one in self.each for extra in one.extras)


class PodEntry(Struct, frozen=True):
    """A row of the list: a pod, or replicas that are alike."""

    pods: tuple[PodRow, ...]

    @property
    def first(self) -> PodRow:
        """The first of them."""
        return self.pods[0]

    @property
    def name(self) -> str:
        """``default/web``, or ``default/web ×17``."""
        if len(self.pods) == 1:
            return self.first.full_name
        owner = self.first.owner
        called = stem(self.first.name) if owner is None else owner.partition("/")[2]
        return f"{self.first.namespace}/{called} ×{len(self.pods)}"

    @property
    def whole(self) -> tuple[str, ...]:
        """What its pods have as a whole."""
        return _some(line for pod in self.pods for line in pod.whole)

    @property
    def containers(self) -> tuple[ContainerEntry, ...]:
        """The containers, in their order."""
        if len(self.pods) == 1:
            return tuple(ContainerEntry((one,)) for one in self.first.containers)
        return tuple(map(ContainerEntry, zip(*(pod.containers for pod in self.pods), strict=True)))


def entries(pods: Sequence[PodRow], *, each: bool = False) -> tuple[PodEntry, ...]:
    """The rows of a list of pods, in the order of the first pod of each.

    Args:
        pods: in the order of their admission.
        each: a row for every pod, however many there are.
    """
    rows = together([shape(pod) for pod in pods], each=each)
    return tuple(PodEntry(tuple(pods[at] for at in row)) for row in rows)


def together(shapes: Sequence[Hashable], *, each: bool = False) -> tuple[tuple[int, ...], ...]:
    """The places of those that are told in one row, by their shapes; in the order of the first.

    A few have a row each, and so has every one with ``each``.

    >>> together(["a"] * 12 + ["b"])[-1], together(["a"] * 11)[1]
    ((12,), (1,))
    """
    if each or len(shapes) <= LISTED:
        return tuple((at,) for at in range(len(shapes)))
    groups: dict[Hashable, list[int]] = {}
    for at, found in enumerate(shapes):
        groups.setdefault(found, []).append(at)
    rows = [
        row
        for group in groups.values()
        for row in ([tuple(group)] if len(group) >= _FEWEST else [(at,) for at in group])
    ]
    return tuple(sorted(rows))


def stem(name: str) -> str:
    """The name of a pod without what its controller appended; the same where it did not.

    >>> stem("web-7d9f8b6c5-gx87d"), stem("kafka-2"), stem("node-exporter-x8k2b"), stem("web-proxy")
    ('web', 'kafka', 'node-exporter', 'web-proxy')
    """
    return _SUFFIX.sub("", name) or name


def shape(pod: PodRow) -> Hashable:
    """What replicas have alike: who has created them, by their names where nothing says it."""
    return (
        pod.namespace,
        pod.owner,
        stem(pod.name) if pod.owner is None else "",
        pod.qos,
        pod.admitted,
        pod.failed,
        pod.reason,
        pod.message,
        tuple(
            (
                one.name,
                one.kind,
                one.remark,
                one.owner is None,
                0 if one.owner is None else len(one.cpus),
            )
            for one in pod.containers
        ),
    )


def _some(lines: Iterable[str]) -> tuple[str, ...]:
    """Each line once; the last ones are only counted where there are many."""
    told = list(dict.fromkeys(lines))
    if len(told) <= _EXTRAS + 1:
        return tuple(told)
    return (*told[:_EXTRAS], f"and {len(told) - _EXTRAS} more lines such as these")
