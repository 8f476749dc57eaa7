"""What a container carries of its pod's record, for a start that finds the record to know less.

A keepsake is written with the container, wherever its runtime keeps its own record, as one text.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.memory.memory import Block
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.ports.records import DeviceGrant, PodPhase, PodRecord

MOST: Final = 64 * 1024
"""Characters; a pod with a longer record leaves out its manifest."""


class Keepsake(Struct, frozen=True):
    """The record of a pod, and the store's generation when its container was made."""

    generation: int
    pod: PodRecord

    def encode(self) -> str:
        """As JSON."""
        text = _text(self.generation, self.pod)
        if len(text) > MOST:
            text = _text(self.generation, replace(self.pod, manifest=""))
        return text

    @staticmethod
    def decode(text: str) -> Keepsake | None:
        """From such a text; None where it is none."""
        try:
            found = json.loads(text)
            return Keepsake(int(found["generation"]), _pod(found))
        except (
            *(KeyError, TypeError, ValueError, AttributeError, RecursionError),
            *(CPUSetError, binascii.Error),
        ):
            return None


def _text(generation: int, pod: PodRecord) -> str:
    return json.dumps(
        {
            "generation": generation,
            "uid": pod.uid,
            "namespace": pod.namespace,
            "name": pod.name,
            "manifest": pod.manifest,
            "source": pod.source,
            "admitted_at": pod.admitted_at,
            "cpus": {name: str(cpus) for name, cpus in pod.assignments.items()},
            "restarts": dict(pod.restarts),
            "exit_codes": dict(pod.exit_codes),
            "memory": {
                name: [[list(one.numa_affinity or ()), one.type, one.size] for one in blocks]
                for name, blocks in pod.memory.items()
            },
            "devices": {
                name: {
                    resource: [list(one.ids), base64.b64encode(one.response).decode()]
                    for resource, one in grants.items()
                }
                for name, grants in pod.devices.items()
            },
        }
    )


def _pod(found: dict[str, Any]) -> PodRecord:
    texts = [found[name] for name in ("uid", "namespace", "name", "manifest", "source")]
    if not all(isinstance(text, str) for text in texts) or not texts[0]:
        raise ValueError
    uid, namespace, name, manifest, source = texts
    return PodRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        manifest=manifest,
        phase=PodPhase.RUNNING,
        source=source,
        admitted_at=float(found["admitted_at"]),
        assignments={one: CPUSet.parse(cpus) for one, cpus in found["cpus"].items()},
        restarts={one: int(count) for one, count in found["restarts"].items()},
        exit_codes={one: int(code) for one, code in found["exit_codes"].items()},
        memory={
            one: tuple(
                Block(tuple(map(int, nodes)), str(kind), int(size)) for nodes, kind, size in blocks
            )
            for one, blocks in found["memory"].items()
        },
        devices={
            one: {
                resource: DeviceGrant(tuple(map(str, ids)), base64.b64decode(response))
                for resource, (ids, response) in grants.items()
            }
            for one, grants in found["devices"].items()
        },
    )
