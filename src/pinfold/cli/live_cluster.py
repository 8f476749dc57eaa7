"""A running cluster as ``plan`` and ``explain`` are asked about it: what is known of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.connection import Asked
from pinfold.adapters.kubernetes.exec_plugin import PluginError
from pinfold.adapters.kubernetes.kubeconfig import users_access
from pinfold.adapters.kubernetes.live_nodes import LiveNode, ReadNodes, Wanted, read_nodes
from pinfold.adapters.kubernetes.resource_topology import NOT_TOLD, topology_machine
from pinfold.adapters.machines.source import read_document
from pinfold.cli.output import InputError, Refused, input_errors, needs_extra
from pinfold.cli.progress_line import progress_line
from pinfold.config.settings import SETTINGS
from pinfold.config.written import WrittenConfig, held_config
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.pod import CPU, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.notes import Note
from pinfold.core.values.quantity import Quantity, QuantityError
from pinfold.documents.live.published import PublishedNode
from pinfold.planning.planner import Planner
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import PROXY_WARNING, Object

_STALE: Final = timedelta(minutes=30)
"""Agents publish anew each ten minutes."""
_SHOWN: Final = 5

Located = tuple[str, Mapping[str, Any]]
"""An object, and where it is, for messages."""


class OnNode(Struct, frozen=True):
    """A node of the cluster, with what its agent has published taken apart."""

    live: LiveNode
    published: PublishedNode | None
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The node's name."""
        return self.live.name

    def machine(self) -> tuple[Machine, tuple[str, ...]]:
        """What machine it is where no option says so, and notes on that; exits with one line.

        Raises:
            MachineError: what is told of it is none.
        """
        if self.live.published is not None:
            document = self.live.published.machine
            return read_document(document, name=self.name, file=f"machine of node {self.name}"), ()
        if self.live.topology is not None:
            with input_errors(PortError):
                told = topology_machine(self.live.topology, name=self.name)
            machine = read_document(told, name=self.name, file=f"topology of node {self.name}")
            return machine, (f"node {self.name}: {NOT_TOLD}",)
        without = " (it has none)" if self.options.get("node_resource_topology") else ""
        raise Refused(
            f"node {self.name}: nothing tells what machine it is. Give a capture of it: "
            f"--node {self.name}=FILE (pinfold capture); have the agent there publish it "
            "(publishNode: true); or take the NUMA nodes of a NodeResourceTopology: "
            f"--node-resource-topology{without}{self._unread}"
        )

    def written(self) -> WrittenConfig | None:
        """Its configuration where no option says so; None: nobody tells, and options do."""
        if self.published is not None:
            name = f"the agent of node {self.name}"
            return held_config(self.published.configuration, name)
        if self.live.configz is not None:
            held = self.live.configz.get("kubeletconfig")
            if not isinstance(held, dict):
                raise Refused(f"node {self.name}: its configz has no kubeletconfig")
            return held_config(held, f"configz of node {self.name}")
        if any(self.options.get(one.attribute) for one in SETTINGS):
            return None
        raise Refused(
            f"node {self.name}: nothing tells its kubelet's configuration. Give its file: "
            "--kubelet-config FILE, or flags such as --policy static; have the agent there publish "
            f"it (publishNode: true); or ask the kubelet: --configz, which needs {PROXY_WARNING}"
            f"{self._unread}"
        )

    @property
    def objects(self) -> Iterator[Located]:
        """The Node and its pods, in the order of their admission."""
        where = f"node {self.name}"
        yield where, self.live.node
        for pod in self.live.pods:
            yield where, pod

    @property
    def told_of_machine(self) -> bytes:
        """What is told of its machine, as bytes; nodes that are told alike are."""
        if self.live.published is not None:
            return self.live.published.machine
        return msgspec.json.encode((self.name, self.live.topology))

    def notes(self, planner: Planner) -> Iterator[Note]:
        """What there is to know of what was read, and where the Node says otherwise."""
        yield from self._contradicted(planner)
        where = f"node {self.name}"
        if self.live.ended:
            ended = f"{self.live.ended} pod{'s' * (self.live.ended != 1)}"
            yield Note(where, f"{ended} that ended left out")
        if self.published is None:
            yield Note(
                where,
                "which CPUs its pods have is not known, as no agent publishes it; planned as if "
                "they were admitted anew, one after the other",
            )
        age = None if self.live.published is None else _age(self.live.published.at)
        if age is not None and age > _STALE:
            hours = age.total_seconds() / 3600
            yield Note(where, f"what its agent has told is {hours:.1f} h old; does it run?")

    def differences(self, planned: Mapping[str, Mapping[str, CPUSet]]) -> Iterator[str]:
        """Where the plan gives a container other CPUs than it has: by uid of the pod and name."""
        if self.published is None:
            return
        names = {
            str(pod["metadata"].get("uid")): _full_name(pod["metadata"]) for pod in self.live.pods
        }
        has = _sets(self.published.assignments)
        told = []
        both = [
            (uid, name) for uid in names for name in {**has.get(uid, {}), **planned.get(uid, {})}
        ]
        for uid, name in both:
            before, here = (of.get(uid, {}).get(name) for of in (has, planned))
            if before != here:
                told.append(f"{names[uid]}/{name} has {_shown(before)}, here {_shown(here)}")
        if told:
            more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
            yield (
                f"node {self.name}: {len(told)} of {len(both)} containers have other CPUs there "
                f"than in this plan, which admits all pods anew: {'; '.join(told[:_SHOWN])}{more}"
            )

    def _contradicted(self, planner: Planner) -> Iterator[Note]:
        """What the Node says of its CPUs, where machine or configuration here are others'."""
        status = self.live.node.get("status")
        said = status if isinstance(status, dict) else {}
        capacity = planner.view.topology.num_cpus * 1000
        here = {
            "capacity": capacity,
            "allocatable": planner.node.allocatable_beside(0).get(CPU, capacity),
        }
        for part, milli in here.items():
            amounts = said.get(part)
            text = amounts.get(CPU) if isinstance(amounts, dict) else None
            try:
                told = Quantity.parse(str(text)).milli_value() if text is not None else milli
            except QuantityError:
                continue
            if told != milli:
                yield Note(
                    f"node {self.name}",
                    f"its {part} says {told / 1000:g} CPUs, and machine and configuration here "
                    f"make it {milli / 1000:g}: they are not the node's own",
                )

    @property
    def _unread(self) -> str:
        return f". What agents publish could not be read: {self.live.unread}" * bool(
            self.live.unread
        )


class LiveCluster(Struct, frozen=True):
    """The nodes that were asked for, and the pods that were asked for by name."""

    nodes: Mapping[str, OnNode]
    pods: tuple[Object, ...] = ()

    @property
    def objects(self) -> Iterator[Located]:
        """All objects, node by node, and the pods that were named and are on none of them."""
        for node in self.nodes.values():
            yield from node.objects
        there = {
            _full_name(pod["metadata"]) for node in self.nodes.values() for pod in node.live.pods
        }
        for pod in self.pods:
            if _full_name(pod["metadata"]) not in there:
                yield "the cluster", _anew(pod)

    @property
    def _there(self) -> frozenset[str]:
        """The uids of the pods that are on the nodes."""
        return frozenset(
            str(pod["metadata"].get("uid"))
            for node in self.nodes.values()
            for pod in node.live.pods
        )

    def notes(self, planners: Mapping[str, Planner], pods: Iterable[Pod]) -> Iterator[Note]:
        """What there is to know of the nodes, and which pods are new."""
        for name, planner in planners.items():
            yield from self.nodes[name].notes(planner)
        there = self._there
        new = [pod.full_name for pod in pods if pod.uid not in there]
        if new:
            more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
            yield Note("", f"new beside what runs there: {', '.join(new[:_SHOWN])}{more}")

    def with_new_last(self, pods: Iterable[Pod], *, is_bound: bool = False) -> tuple[Pod, ...]:
        """The pods as they are admitted: new ones come to a node after those that are there.

        ``is_bound``: a new one that names its node stays bound to it.
        """
        there = self._there
        latest = max((pod.creation_timestamp or "" for pod in pods), default="")
        return tuple(
            pod
            if pod.uid in there
            else replace(
                pod, node_name=pod.node_name if is_bound else "", creation_timestamp=latest
            )
            for pod in pods
        )

    def only(self) -> OnNode:
        """The node, where one was asked for; exits with one line where there are several."""
        if len(self.nodes) != 1:
            shown = ", ".join(list(self.nodes)[:_SHOWN])
            raise InputError(
                f"this is answered for one node, and there are {len(self.nodes)} ({shown}"
                f"{', ...' * (len(self.nodes) > _SHOWN)}): give --node NAME"
            )
        return next(iter(self.nodes.values()))


def live_cluster(
    names: Iterable[str], options: Mapping[str, Any], pods: Sequence[tuple[str, str]] = ()
) -> LiveCluster:
    """Read nodes of the cluster by the user's kubeconfig; exits with one line if it cannot be.

    Args:
        names: of nodes, or patterns; none: those of the ``pods``, else all.
        options: those of :func:`pinfold.cli.options.cluster.cluster_options`.
        pods: namespace and name of pods that are wanted, wherever they are.
    """
    try:
        # A plugin may ask for a password: no line of ours runs over that.
        access = users_access(options.get("kubeconfig"), options.get("context") or "")
    except PluginError as error:
        raise Refused(str(error)) from None
    except PortError as error:
        raise InputError(str(error)) from None
    wanted = Wanted(
        tuple(names),
        tuple((namespace or access.namespace or "default", name) for namespace, name in pods),
        configz=bool(options.get("configz")),
        topology=bool(options.get("node_resource_topology")),
    )
    try:
        with needs_extra("reading a cluster", "agent"), progress_line(f"reading {access.server}"):
            cluster = _read(access, wanted, verbose=bool(options.get("verbose")))
    except PortError as error:
        raise Refused(str(error)) from None
    nodes = {one.name: OnNode(one, _published(one), options) for one in cluster.nodes}
    return LiveCluster(nodes, cluster.pods)


def _read(access: Access, wanted: Wanted, *, verbose: bool) -> ReadNodes:
    def heard(asked: Asked) -> None:
        if verbose:
            status = asked.status or "no answer"
            click.echo(f"{asked.method} {asked.path} {status} {asked.seconds:.3f} s", err=True)

    return asyncio.run(read_nodes(access, wanted, heard))


def _published(live: LiveNode) -> PublishedNode | None:
    if live.published is None:
        return None
    try:
        return msgspec.json.decode(live.published.node, type=PublishedNode)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(
            f"node {live.name}: what its agent has published cannot be read: {error}"
        ) from None


def _anew(pod: Object) -> Object:
    """A pod as it was before a node had it: planned after those that are there."""
    spec = {key: value for key, value in pod.get("spec", {}).items() if key != "nodeName"}
    return {**{key: value for key, value in pod.items() if key != "status"}, "spec": spec}


def _sets(assignments: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, CPUSet]]:
    try:
        return {
            uid: {name: CPUSet.parse(cpus) for name, cpus in containers.items()}
            for uid, containers in assignments.items()
        }
    except ValueError as error:
        raise Refused(f"assignments that an agent has published: {error}") from None


def _full_name(metadata: Mapping[str, Any]) -> str:
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"


def _shown(cpus: CPUSet | None) -> str:
    return str(cpus) if cpus else "the shared pool"


def _age(at: str) -> timedelta | None:
    """How old a time is; None where it is none."""
    try:
        return datetime.now(UTC) - datetime.fromisoformat(at)
    except (ValueError, TypeError):
        return None
