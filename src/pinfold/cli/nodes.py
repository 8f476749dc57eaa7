"""What ``plan --node`` is asked: several nodes, and what runs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pinfold.adapters.kubernetes.manifests import ManifestError, Manifests
from pinfold.admission.model import NodeError
from pinfold.cli.forms import Output
from pinfold.cli.kubelet_config import ConfigSource
from pinfold.cli.named_node import NamedNode, named_nodes
from pinfold.cli.node import (
    asked_cluster,
    facts_on,
    load_devices,
    opened_machine,
    planned_quotas,
    read_objects,
)
from pinfold.cli.options.claims import claim_rules
from pinfold.cli.output import InputError, input_errors, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.config.kubelet import told_by
from pinfold.core.kubelet.node_object import NodeObject
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.machine import MachineError
from pinfold.core.pod.owner import PodOwner
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.scheduling import HOSTNAME, UNSCHEDULABLE
from pinfold.core.values.name_patterns import named
from pinfold.core.values.notes import Note, said_once
from pinfold.planning.nodes.devices import node_devices, node_resources
from pinfold.planning.nodes.document import nodes_document
from pinfold.planning.nodes.planned import Cluster, PlannedNode
from pinfold.planning.planner import Plan, Planner
from pinfold.render.nodes import render_nodes
from pinfold.render.terminal import Style
from pinfold.views.nodes import nodes_view

if TYPE_CHECKING:
    from pinfold.cli.live_cluster import LiveCluster


class ClusterRequest(Struct, frozen=True):
    """What was asked: nodes to plan on, the pods, and notes on what was passed over."""

    cluster: Cluster
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]
    owners: Mapping[str, tuple[PodOwner, ...]] = {}
    """The workloads that a pod is of, by its uid."""
    live: LiveCluster | None = None
    """Where the nodes were read; None: they are described by files."""

    def differences(self, plans: Mapping[str, Plan]) -> Iterator[str]:
        """Where containers have other CPUs than in these plans."""
        if self.live is not None:
            for name, node in self.live.nodes.items():
                yield from node.differences(plans[name].ledger.assignments)


def plan_nodes(
    manifests: tuple[str, ...],
    options: Mapping[str, Any],
    *,
    output: Output,
    each_pod: bool,
    style: Style,
) -> None:
    """Print the plan of these nodes."""
    request = load_cluster(manifests, options)
    with progress_line("placing pods on the nodes"):
        placed = request.cluster.plan(request.pods)
    notes = (*request.notes, *request.differences(placed.plans))
    document = nodes_document(placed, notes)
    if output.is_document:
        output.tell(document)
    else:
        view = nodes_view(document, placed.plans, request.owners, each_pod=each_pod)
        if output == "html":
            from pinfold.cli.pages import page_of_nodes  # noqa: PLC0415 - 80 ms

            print_text(page_of_nodes(view))
        else:
            print_text(render_nodes(view, style))


def load_cluster(manifests: tuple[str, ...], options: Mapping[str, Any]) -> ClusterRequest:
    """Read machines, configuration and manifests; exits with one clear line if they are bad."""
    source = ConfigSource.of(options)
    claims = claim_rules(options)
    asked = named_nodes(options)
    live = asked_cluster(manifests, options, [one.name for one in asked])
    sources = {} if live is None else {n: source.else_of(o.written) for n, o in live.nodes.items()}
    has_section = any(one.has_section for one in (source, *sources.values()))
    with (
        input_errors(MachineError, ManifestError),
        input_errors(NodeError, prefix=source.prefix),
    ):
        read = read_objects(manifests, live, claims, own=has_section)
        every = asked or ((NamedNode("*", None),) if live is not None else ())
        machines = _machines(every, read.nodes, options.get("machine"))
        making = _Making(source, sources, read, options.get("devices"), live)
        made = tuple(making.node(name, machine) for name, machine in machines.items())
    resources = [one for one in read.compute_resources if not one.node_name]
    for node in made:
        resources += node_resources(
            node.name, node.planner.devices, read.classes, read.compute_resources
        )
    quotas = planned_quotas(read, claims)
    cluster = Cluster(made, read.classes, tuple(resources), quotas, read.scheduling)
    said = list(_notes(read, machines))
    pods = read.pods
    if live is not None:
        said += live.notes({one.name: one.planner for one in made}, pods)
        pods = live.with_new_last(pods, is_bound=True)
    told = (*making.notes, *read.notes, *said_once(said))
    return ClusterRequest(cluster, pods, tuple(dict.fromkeys(told)), read.owners, live)


def _machines(
    nodes: tuple[NamedNode, ...], objects: Iterable[NodeObject], usual: str | None
) -> dict[str, str | None]:
    """Each node with its machine, as ``--machine`` takes it; one by its name goes before any."""
    found: dict[str, str | None] = {}
    patterns: list[tuple[str, str | None]] = []
    for one in nodes:
        name, machine = one.name, one.machine or usual
        if one.is_pattern:
            patterns.append((name, machine))
        elif name in found:
            raise InputError(f"--node {name}: is there twice")
        else:
            found[name] = machine
    names = [one.name for one in objects]
    for pattern, machine in patterns:
        matching = named(pattern, names)
        if not matching:
            raise InputError(f"--node {pattern}: no Node among the manifests is called so")
        for name in matching:
            found.setdefault(name, machine)
    return found


class _Making:
    """Makes nodes; those that are alike share what was made for the first."""

    def __init__(
        self,
        source: ConfigSource,
        sources: Mapping[str, ConfigSource],
        read: Manifests,
        devices: str | None,
        live: LiveCluster | None,
    ) -> None:
        self._source = source
        self._sources = sources
        self._live = {} if live is None else live.nodes
        self._read = read
        self._devices = devices
        self._objects = {one.name: one for one in read.nodes}
        self._known: dict[tuple[object, ...], Planner] = {}
        self.notes: list[str] = []

    def node(self, name: str, machine: str | None) -> PlannedNode:
        """A node of this name; raises MachineError, NodeError."""
        said = self._objects.get(name, NodeObject(name))
        taints = (*said.taints, UNSCHEDULABLE) if said.unschedulable else said.taints
        planner = self._planner(said, machine)
        labels = {HOSTNAME: name, **said.labels}
        return PlannedNode(name, planner, labels, taints, said.allocatable)

    def _planner(self, node: NodeObject, text: str | None) -> Planner:
        on_node = self._live.get(node.name)
        source = self._sources.get(node.name, self._source)
        alike = text if text is not None or on_node is None else on_node.told_of_machine
        facts = facts_on(text, on_node)
        told = told_by(node, facts.kubelet_version)
        version = (told.kubelet_version_from, told.kubelet_version, told.kubelet_version_remark)
        written = "" if on_node is None else msgspec.json.encode(source.written.fields)
        key = (alike, written, *version)
        base = self._known.get(key)
        if base is None:
            config, said = source.config(told)
            self.notes += said
            with progress_line("reading the machines"):
                machine, said = opened_machine(text, on_node)
            self.notes += said
            listed, notes = load_devices(self._devices, machine)
            self.notes += notes
            kernel = Kernel() if config.own is None else facts.kernel
            base = Planner(machine, config, devices=listed, kernel=kernel)
            self._known[key] = base
        own = node_devices(node.name, base.devices, self._read.compute_resources, base.view)
        if own == base.devices:
            return base
        return Planner(base.machine, base.config, devices=own, kernel=base.kernel)


def _notes(read: Manifests, machines: Mapping[str, object]) -> Iterator[Note]:
    for one in read.nodes:
        if one.name not in machines:
            yield Note(f"Node {one.name}", "no --node says what machine it is, left out")
    for resource in read.compute_resources:
        if resource.node_name and resource.node_name not in machines:
            yield Note(
                f"ComputeResource {resource.name}",
                f"is of node {resource.node_name}, which is not among the nodes (--node), left out",
                " ",
            )
    unheeded = Counter(name for one in read.scheduling.values() for name in one.unheeded)
    for name, count in sorted(unheeded.items()):
        yield Note(f"spec.{name} of {count} pod{'s' * (count != 1)}", "planned without it")
