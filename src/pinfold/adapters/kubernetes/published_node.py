"""The ConfigMap in which an agent publishes its node: how it is written, and how it is read."""

from __future__ import annotations

import binascii
import gzip
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.ports.kubernetes import KubernetesError

NAMESPACE: Final = "pinfold-nodes"
"""The namespace of what agents publish of their nodes: a ConfigMap with the name of the node."""
MACHINE: Final = "machine.json.gz"
NODE: Final = "node.json"
AT: Final = "pinfold.dev/published-at"
"""The annotation of it that says when."""

_MAX_MACHINE: Final = 16 << 20


class Published(Struct, frozen=True):
    """What the agent of a node has published; ``machine`` and ``node`` are JSON."""

    machine: bytes
    node: bytes
    at: str


def config_map(name: str, published: Published) -> dict[str, Any]:
    """The ConfigMap of the node of this name."""
    # The same bytes for the same machine: what has not changed is not written.
    packed = gzip.compress(published.machine, mtime=0)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {AT: published.at}},
        "data": {NODE: published.node.decode()},
        "binaryData": {MACHINE: b64encode(packed).decode()},
    }


def published_of(found: Mapping[str, Any], where: str) -> Published:
    """What is in the ConfigMap of a node; raises KubernetesError, which calls it ``where``."""
    node, packed = _held(found, "data", NODE), _held(found, "binaryData", MACHINE)
    if not node or not packed:
        missing = MACHINE if node else NODE
        raise KubernetesError(f"{where}: has no {missing}", "which agent has written it?")
    try:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        machine = unpacker.decompress(b64decode(packed, validate=True), _MAX_MACHINE)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise KubernetesError(f"{where}: {MACHINE}: {error}") from None
    if not unpacker.eof:
        raise KubernetesError(f"{where}: {MACHINE}: is cut off, or more than 16 MiB")
    metadata = found.get("metadata")
    at = _held(metadata, "annotations", AT) if isinstance(metadata, dict) else ""
    return Published(machine, node.encode(), at)


def _held(found: Mapping[str, Any], part: str, name: str) -> str:
    """A text in a part of an object; "" where it is none."""
    held = found.get(part)
    value = held.get(name) if isinstance(held, dict) else None
    return value if isinstance(value, str) else ""
