"""What a container carries of its pod's record, for a start that finds the record to know less.

A keepsake is written with the container, wherever its runtime keeps its own record, as one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from pinfold.core.memory.memory import Block
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import ByLoad, DeviceGrant, PodPhase, PodRecord

MOST: Final = 64 * 1024
"""Characters; a pod with a longer record leaves out its manifest."""


_Block: TypeAlias = tuple[tuple[int, ...], str, int]
"""NUMA nodes, type, size."""


class _Written(Struct, frozen=True):
    generation: int
    uid: Annotated[str, Meta(min_length=1)]
    namespace: str
    name: str
    manifest: str
    source: str
    admitted_at: float
    cpus: Mapping[str, CPUSet]
    restarts: Mapping[str, int]
    exit_codes: Mapping[str, int]
    memory: Mapping[str, tuple[_Block, ...]]
    """By container."""
    devices: Mapping[str, Mapping[str, tuple[tuple[str, ...], bytes]]]
    """By container and resource: ids, what the plugin answered."""
    baselines: Mapping[str, CPUSet] = {}
    idle: Mapping[str, CPUSet] = {}
    load_driven: tuple[str, ...] = ()
    bubble: CPUSet = CPUSet()
    bubble_memory: tuple[_Block, ...] = ()


class Keepsake(Struct, frozen=True):
    """The record of a pod, and the store's generation when its container was made."""

    generation: int
    pod: PodRecord

    def encode(self) -> str:
        """As JSON."""
        text = _text(self.generation, self.pod)
        return text if len(text) <= MOST else _text(self.generation, replace(self.pod, manifest=""))

    @staticmethod
    def decode(text: str) -> Keepsake | None:
        """From such a text; None where it is none."""
        try:
            found = msgspec.json.decode(text, type=_Written, dec_hook=_cpus)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        return Keepsake(found.generation, _pod(found))


def _cpus(_: type, text: object) -> CPUSet:
    if not isinstance(text, str):
        raise TypeError
    return CPUSet.parse(text)


def _text(generation: int, pod: PodRecord) -> str:
    written = _Written(
        generation,
        pod.uid,
        pod.namespace,
        pod.name,
        pod.manifest,
        pod.source,
        pod.admitted_at,
        dict(pod.assignments),
        dict(pod.restarts),
        dict(pod.exit_codes),
        {name: _told(blocks) for name, blocks in pod.memory.items()},
        {
            name: {resource: (one.ids, one.response) for resource, one in grants.items()}
            for name, grants in pod.devices.items()
        },
        dict(pod.baselines),
        dict(pod.idle),
        tuple(sorted(pod.load_driven)),
        pod.bubble,
        _told(pod.bubble_memory),
    )
    return msgspec.json.encode(written, enc_hook=str).decode()


def _told(blocks: tuple[Block, ...]) -> tuple[_Block, ...]:
    return tuple((one.numa_affinity or (), one.type, one.size) for one in blocks)


def _pod(found: _Written) -> PodRecord:
    return PodRecord(
        found.uid,
        found.namespace,
        found.name,
        found.manifest,
        PodPhase.RUNNING,
        found.source,
        admitted_at=found.admitted_at,
        assignments=found.cpus,
        restarts=found.restarts,
        exit_codes=found.exit_codes,
        memory={
            name: tuple(Block(*one) for one in blocks) for name, blocks in found.memory.items()
        },
        devices={
            name: {resource: DeviceGrant(*one) for resource, one in grants.items()}
            for name, grants in found.devices.items()
        },
        baselines=found.baselines,
        idle=found.idle,
        load_driven=dict.fromkeys(found.load_driven, ByLoad()),
        bubble=found.bubble,
        bubble_memory=tuple(Block(*one) for one in found.bubble_memory),
    )
