"""What ``--node`` names: a node, if wanted with its machine; and which of the pods are its."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pinfold.cli.options.cluster import is_from_cluster
from pinfold.cli.output import InputError
from pinfold.core.pod.pod import Pod
from pinfold.core.values.name_patterns import is_pattern

_SHOWN: Final = 5


class NamedNode(Struct, frozen=True):
    """One ``--node NAME[=MACHINE]``."""

    name: str
    machine: str | None

    @classmethod
    def parse(cls, text: str) -> NamedNode:
        """Read it; exits with one line if it is none."""
        name, equals, machine = text.partition("=")
        if not name or (equals and not machine):
            raise InputError(f"--node {text}: write NAME, or NAME=MACHINE such as node-1=2s8c2t")
        return cls(name, machine or None)

    @property
    def is_pattern(self) -> bool:
        """Whether it may stand for several nodes."""
        return is_pattern(self.name)


def named_nodes(options: Mapping[str, Any]) -> tuple[NamedNode, ...]:
    """The nodes of ``--node``; exits with one line if one of them is none."""
    return tuple(map(NamedNode.parse, options.get("node") or ()))


def is_one_node(options: Mapping[str, Any], manifests: Sequence[str]) -> bool:
    """Whether a plan is about one node: no ``--node`` names one, or just one of them does.

    A cluster of which no node is named is about all of them.
    """
    nodes = named_nodes(options)
    if not nodes:
        return not is_from_cluster(manifests, options)
    return len(nodes) == 1 and not nodes[0].is_pattern


def one_node(options: Mapping[str, Any]) -> NamedNode | None:
    """The node of a plan of one; None where nobody named it; exits where there are several."""
    nodes = named_nodes(options)
    if not nodes:
        return None
    if len(nodes) > 1 or nodes[0].is_pattern:
        raise InputError("--node: this is answered for one node by its name; give one --node NAME")
    return nodes[0]


def pods_of(
    node: NamedNode | None, pods: Sequence[Pod], objects: Iterable[str], *, machine: str = ""
) -> tuple[tuple[Pod, ...], tuple[str, ...]]:
    """The pods to plan on a node, and what there is to say of their nodes.

    Without a node these are all of them.  With one, they are those that are bound to it
    (``spec.nodeName``), and those that are bound to none.  ``objects`` are the names of the Nodes
    among the manifests; exits with one line where nothing is called as the node is.  ``machine``
    says how to tell what machine the node is, where no option has: this one would answer for it.
    """
    bound = Counter(pod.node_name for pod in pods if pod.node_name)
    free = sum(not pod.node_name for pod in pods)
    if node is None:
        return tuple(pods), tuple(_mixed(bound, free))
    known = {*bound, *objects}
    if node.name not in known and known and node.machine is None:
        raise InputError(
            f"--node {node.name}: no pod is on it (spec.nodeName), and no Node is called so; there "
            f"are {_first([*sorted(known)])}"
        )
    if not known and machine:
        raise InputError(f"--node {node.name}: the manifests say nothing of a node; {machine}")
    taken = tuple(pod for pod in pods if pod.node_name in ("", node.name))
    return taken, tuple(_said(node.name, bound, free))


def _mixed(bound: Mapping[str, int], free: int) -> Iterator[str]:
    if len(bound) < 2:
        return
    others = f", {_pods(free)} of none" if free else ""
    counts = _first([f"{count} of {name}" for name, count in sorted(bound.items())])
    yield (
        f"pods of {len(bound)} nodes (spec.nodeName) are planned onto one: {counts}{others}; "
        "--node NAME takes those of one node"
    )


def _said(name: str, bound: Mapping[str, int], free: int) -> Iterator[str]:
    elsewhere = {other: count for other, count in sorted(bound.items()) if other != name}
    if elsewhere:
        counts = _first([f"{count} of {other}" for other, count in elsewhere.items()])
        yield f"{_pods(sum(elsewhere.values()))} of other nodes left out: {counts}"
    here = bound.get(name, 0)
    if free and bound:
        yield f"{_pods(free)} without spec.nodeName planned after the {here} of node {name}"


def _pods(count: int) -> str:
    return f"{count} pod{'s' * (count != 1)}"


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
