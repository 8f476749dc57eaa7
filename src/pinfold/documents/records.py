"""What the documents are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

VERSION: Final = 1
"""Of all documents.  It grows when a field changes its meaning or goes away, not when a field is
added, and not when a text may be one more word."""


class Record(Struct, frozen=True, kw_only=True):
    """An object of a document.

    A field whose default is ``UNSET`` is left out where there is nothing to say.  Any other default
    is what to take for a field that an agent of an earlier version did not tell yet.
    """


class Document(Record, frozen=True, kw_only=True, tag_field="version", tag=VERSION):
    """A document: its first field is its ``version``."""


CPUs: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={
            "pattern": r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$",
            "description": "a set of CPUs in the kernel's list format, empty when there is none",
        }
    ),
]
Quantity: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"description": "as the Kubernetes API writes it: 14500m, 2Gi"})
]

# The words of a text are told, and not enforced: a client understands an agent that knows more.
ContainerKind: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["container", "init", "sidecar"]})
]
QOSClass: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["Guaranteed", "Burstable", "BestEffort"]})
]


class Kubelet(Record, frozen=True, kw_only=True):
    """The version of the kubelet whose answers are given."""

    version: Annotated[
        str, Meta(extra_json_schema={"pattern": r"^1\.\d+\.\d+$", "description": "such as 1.36.2"})
    ]
    source: Annotated[
        str,
        Meta(
            extra_json_schema={
                "enum": ["flag", "configuration", "record", "node", "capture", "default"]
            }
        ),
    ]
    """Who said so: ``--kubelet-version``, ``kubeletVersion`` of the section ``pinfold``, the
    agent's record, a Node, a capture of the machine, or nobody."""
    recorded: bool
    """Whether its answers were seen; else they were read from proposals."""
    remark: str | UnsetType = UNSET
    """Where these are not the recorded answers of just this version."""


class DecidesAs(Kubelet, frozen=True, kw_only=True):
    """The kubelet as which an agent decides."""

    newest: str
    """The version as which an agent decides that begins today."""
    differences: Sequence[str] = ()
    """What would be otherwise with that one."""


class MemoryBlock(Record, frozen=True, kw_only=True):
    """Memory of one kind that the memory manager gave to a container."""

    type: str
    """``memory``, or the resource name of huge pages."""
    size: int
    """Bytes."""
    numa_nodes: tuple[int, ...]


Isolation: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["container", "pod", "host"]})
]


class Bubble(Record, frozen=True, kw_only=True):
    """What a pod has as a whole, which its containers divide."""

    cpus: CPUs
    """Empty where the pod has memory only."""
    pool: CPUs
    """Those of them that no container has for itself: the pod shared pool."""
    memory: Sequence[MemoryBlock]
    """What the memory manager gave to the pod; what it gave to containers is in that."""


Size: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes, or a number of pages."""


class Pages(Record, frozen=True, kw_only=True):
    """Huge pages of one size."""

    total: Size = 0
    free: Size = 0


Option: TypeAlias = str | bool | int | Mapping[str, Mapping[str, str | bool | int]]
"""The value of an option, or several of them by what they are for."""


class Policies(Record, frozen=True, kw_only=True, rename="camel"):
    """The policies of CPU and topology manager, named as in a KubeletConfiguration."""

    cpu_manager_policy: str
    cpu_manager_policy_options: Mapping[str, str]
    topology_manager_policy: str
    topology_manager_scope: str
    topology_manager_policy_options: Mapping[str, str]
    pinfold: Mapping[str, Mapping[str, Option]] | UnsetType = UNSET
    """The options of Pinfold's own, by group, where the file has a section ``pinfold``."""
