"""What ``plan``, ``explain`` and ``rebalance`` are asked: a node, and what runs on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from pinfold.adapters.kubernetes.manifests import ManifestError, Manifests, read_manifests
from pinfold.adapters.machines.source import open_machine
from pinfold.admission.model import NodeError
from pinfold.cli.kubelet_config import ConfigSource, meant_node
from pinfold.cli.named_node import NamedNode, one_node, pods_of
from pinfold.cli.options.claims import claim_rules
from pinfold.cli.options.cluster import check_cluster_options, is_from_cluster
from pinfold.cli.output import input_errors
from pinfold.cli.progress_line import progress_line
from pinfold.config.kubelet import told_by
from pinfold.core.devices.classes import NO_CLASSES, DeviceClasses
from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.node_object import NodeObject
from pinfold.core.kubelet.versions import VersionSource
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.moves.resize_wish import ResizeError, ResizeWish
from pinfold.core.pod.owner import PodOwner, PodsName
from pinfold.core.pod.pod import Pod
from pinfold.core.quota.claims import ClaimRules
from pinfold.core.values.notes import said_once
from pinfold.planning.machine_facts import MachineFacts, facts_of
from pinfold.planning.nodes.devices import node_devices
from pinfold.planning.planner import Plan, Planner
from pinfold.planning.quotas import PlannedQuotas
from pinfold.planning.resource_notes import class_notes, volume_notes

if TYPE_CHECKING:
    from pinfold.cli.live_cluster import LiveCluster, OnNode


class Request(Struct, frozen=True):
    """What was asked: a node to plan on, the pods, and notes on what was passed over."""

    planner: Planner
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]
    source: ConfigSource
    told: NodeConfig
    """With the version of the kubelet, where something tells it."""
    owners: Mapping[str, tuple[PodOwner, ...]] = {}
    """The workloads that a pod is of, by its uid."""
    told_first: tuple[str, ...] = ()
    """Those of the notes that are on standard error already."""
    on_node: OnNode | None = None
    """The node of a cluster; None: it is described by files."""

    @property
    def notes_below(self) -> tuple[str, ...]:
        """The notes that a text still has to tell."""
        return tuple(note for note in self.notes if note not in self.told_first)

    @property
    def title(self) -> str:
        """The machine's name."""
        return self.planner.machine.name


def load_request(
    manifests: tuple[str, ...],
    options: Mapping[str, Any],
    *,
    as_kubelet: bool = False,
    pods: Sequence[PodsName] = (),
) -> Request:
    """Read machine, configuration and manifests; exits with one clear line if they are bad.

    ``as_kubelet`` is that of :class:`~pinfold.planning.planner.Planner`; ``pods`` are those that
    are asked about, which a cluster is asked for wherever they are.
    """
    source, node = ConfigSource.of(options), one_node(options)
    described = options.get("machine") if node is None else node.machine or options.get("machine")
    live = asked_cluster(manifests, options, () if node is None else (node.name,), pods)
    on_node = None if live is None else live.only()
    if on_node is not None:
        node = NamedNode(on_node.name, described)
        source = source.else_of(on_node.written)
    with input_errors(MachineError, ManifestError):
        with progress_line("reading the machine"):
            machine, machine_notes = opened_machine(described, on_node)
        devices, device_notes = load_devices(options.get("devices"), machine)
        claims = claim_rules(options)
        read = read_objects(manifests, live, claims, own=source.has_section)
        every = read.pods if live is None else live.with_new_last(read.pods)
        machine_of_node = "" if described is not None else _machine_of(node, options)
        planned, said = pods_of(
            node, every, (one.name for one in read.nodes), machine=machine_of_node
        )
        if node is None:
            # Whoever has forgotten --node is told before a long plan is.
            for note in said:
                click.echo(f"note: {note}", err=True)
        name = machine.name if node is None else node.name
        if node is not None and read.compute_resources:
            view = kubelet_view(machine)
            devices = node_devices(name, devices or {}, read.compute_resources, view)
        facts = facts_on(described, on_node)
        of_node = meant_node(read.nodes, name, is_asked=node is not None)
        told = told_by(of_node, facts.kubelet_version)
        config, notes = source.config(told)
        with input_errors(NodeError, prefix=source.prefix):
            planner = Planner(
                machine,
                config,
                devices=devices,
                classes=DeviceClasses.on_node(read.classes, read.compute_resources, name),
                kernel=Kernel() if config.own is None else facts.kernel,
                quotas=planned_quotas(read, claims),
                as_kubelet=as_kubelet,
            )
    notes = (*said, *notes, *device_notes, *read.notes, *_class_notes(planner, planned))
    notes = (*notes, *volume_notes(planner, planned, read.in_memory))
    if live is not None and on_node is not None:
        said_live = said_once(live.notes({on_node.name: planner}, read.pods))
        notes = (*machine_notes, *said_live, *notes)
    elif read.nodes:
        notes = (*notes, _left_out(read.nodes, config, node))
    told_first = said if node is None else ()
    return Request(planner, planned, notes, source, told, read.owners, told_first, on_node)


def asked_cluster(
    manifests: Sequence[str],
    options: Mapping[str, Any],
    names: Sequence[str],
    pods: Sequence[PodsName] = (),
) -> LiveCluster | None:
    """The cluster that is asked about these nodes; None: nodes and pods are described by files.

    Exits with one line where it cannot be read.
    """
    check_cluster_options(manifests, options)
    if not is_from_cluster(manifests, options):
        return None
    from pinfold.cli.live_cluster import live_cluster  # noqa: PLC0415 - 45 ms

    named = [(one.namespace or "", one.name) for one in pods if one.kind == "Pod"]
    return live_cluster(names, options, named)


def read_objects(
    manifests: Sequence[str], live: LiveCluster | None, claims: ClaimRules, *, own: bool
) -> Manifests:
    """The objects of manifests, and those of a cluster that is asked; ``own`` as its reader has it.

    Raises:
        ManifestError: they cannot be read.
    """
    with progress_line("reading the manifests"):
        objects = () if live is None else tuple(live.objects)
        return read_manifests(manifests, own=own, claims=claims, live=objects)


def opened_machine(
    described: str | None, on_node: OnNode | None
) -> tuple[Machine, tuple[str, ...]]:
    """The machine as an option describes it, else what is told of the node; and notes on that.

    Raises:
        MachineError: it is none.
    """
    if on_node is None or described is not None:
        return open_machine(described), ()
    return on_node.machine()


def facts_on(described: str | None, on_node: OnNode | None) -> MachineFacts:
    """What is known of that machine; the one of who asks says nothing of a node of the cluster."""
    return facts_of(described) if on_node is None or described is not None else MachineFacts()


def planned_quotas(read: Manifests, claims: ClaimRules) -> PlannedQuotas:
    """The quotas among what was read, and what counts for them."""
    return PlannedQuotas.of(read.quotas, read.counted, read.claims, read.templates, claims.capacity)


def _machine_of(node: NamedNode | None, options: Mapping[str, Any]) -> str:
    """How to say what machine a node is."""
    if node is None:
        return ""
    given = f"give its machine: --node {node.name}=MACHINE"
    return (
        f"{given}, or --from-cluster for one of your cluster" * ("from_cluster" in options) or given
    )


def _left_out(nodes: Sequence[NodeObject], config: NodeConfig, node: NamedNode | None) -> str:
    many = f"{len(nodes)} Node{'s' * (len(nodes) != 1)}"
    but = " but for its kubelet's version" * (config.kubelet_version_from is VersionSource.NODE)
    several = "plan --node" if node is None else "several --node"
    return f"{many}: left out{but} without {several}"


def _class_notes(planner: Planner, pods: tuple[Pod, ...]) -> tuple[str, ...]:
    if planner.classes is NO_CLASSES:
        return ()
    return tuple(class_notes(planner, pods))


def placed_pods(planner: Planner, pods: Sequence[Pod], resizes: Iterable[str]) -> Plan:
    """The pods placed, and resized as ``--resize`` says; exits with one line if that is bad."""
    with input_errors(ResizeError, prefix="--resize: "):
        wishes = [ResizeWish.parse(text) for text in resizes]
        with progress_line("placing pods", len(pods)) as count:
            placed = planner.collected(count.each(planner.decisions(pods)))
        for wish in wishes:
            placed = planner.resize(placed, wish)
    return placed


def load_devices(
    file: str | None, machine: Machine
) -> tuple[DeviceInventory | None, tuple[str, ...]]:
    """The devices of ``--devices``, and notes on them; exits with one line if the file is bad."""
    if file is None:
        return None, ()
    from pinfold.config.devices_file import ConfigError, load_devices  # noqa: PLC0415 - 5.1 ms

    with input_errors(MachineError, ConfigError):
        loaded = load_devices(file, machine)
    return loaded.inventory, tuple(f"{file}: {note}" for note in loaded.notes)
