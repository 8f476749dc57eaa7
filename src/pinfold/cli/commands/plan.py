"""``pinfold plan``: the kubelet's placement of some pods on a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.model import NodeError
from pinfold.cli.forms import Output, output_option
from pinfold.cli.kubelet_config import ConfigSource
from pinfold.cli.named_node import is_one_node
from pinfold.cli.node import Request, load_request, placed_pods
from pinfold.cli.options.claims import claim_options
from pinfold.cli.options.cluster import cluster_options, is_from_cluster
from pinfold.cli.options.nodes import node_options, resize_option, version_option
from pinfold.cli.options.pods import manifest_arguments
from pinfold.cli.output import color_option, each_pod_option, input_errors, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.cli.terminal import style
from pinfold.core.classes.names import class_resource
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import NamedVersion
from pinfold.core.machine.machine import MachineError
from pinfold.planning.compare import compare_document
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, Planner
from pinfold.planning.resource_notes import unknown_resources
from pinfold.render.svg import render_plan_svg
from pinfold.render.text import render_plan
from pinfold.views.plan import plan_view, planned_on

_OWN_RESIZES: Final = (
    "beside a section pinfold, resizes are answered by Pinfold's rules and not by the kubelet's"
)


class Other(Struct, frozen=True):
    """What the plan is compared with: a second configuration, another kubelet, or both."""

    file: str | None
    config_dir: str | None
    version: NamedVersion | None

    @property
    def is_asked(self) -> bool:
        """Whether there is something to compare with."""
        return self.other_files or self.version is not None

    @property
    def other_files(self) -> bool:
        """Whether the configuration is another one."""
        return self.file is not None or self.config_dir is not None

    def prefix(self, source: ConfigSource) -> str:
        """Before what is said of a configuration with which the other kubelet does not start."""
        version = "" if self.version is None else f"kubelet {self.version.version.shown}: "
        return f"{version}{source.prefix if self.other_files else ''}"

    def source(self, before: ConfigSource) -> tuple[ConfigSource, tuple[str, ...]]:
        """The second configuration, and what the other kubelet refuses, which is left out."""
        source = before
        if self.other_files:
            first = before.flags.get("kubelet_config")
            files = {"kubelet_config": self.file or first, "config_dir": self.config_dir}
            source = ConfigSource.of(files)
            if self.file is None:
                source = replace(source, flags=before.flags)
            source = replace(source, asked=before.asked)
        if self.version is None:
            return source, ()
        source = replace(source, asked=self.version)
        return source.without_refused(self.version.version)

    def names(
        self, sources: tuple[ConfigSource, ConfigSource], before: NodeConfig, after: NodeConfig
    ) -> tuple[str, str]:
        """What the two sides are called: the files, the kubelets, or both."""
        files = (sources[0].name, sources[1].name)
        if files[0] == files[1]:
            files = (sources[0].written.name, sources[1].written.name)
        versions = (before.kubelet_version, after.kubelet_version)
        alike = str(versions[0]) == str(versions[1])
        kubelets = [one.full if alike else one.shown for one in versions]
        if self.version is None:
            return files
        if not self.other_files:
            return f"kubelet {kubelets[0]}", f"kubelet {kubelets[1]}"
        return f"{files[0]}, {kubelets[0]}", f"{files[1]}, {kubelets[1]}"


@click.command()
@manifest_arguments(required=False)
@node_options
@cluster_options
@click.option(
    "--compare",
    metavar="FILE",
    help="Plan the same pods under this second KubeletConfiguration too, and show what changes.",
)
@click.option(
    "--compare-config-dir",
    metavar="DIR",
    help="A folder of drop-ins of the second configuration, as --config-dir. Without --compare "
    "they are laid over the file of the first one.",
)
@version_option(
    "--compare-kubelet-version",
    "Plan the same pods under the kubelet of this version too, and show what changes.",
)
@resize_option
@claim_options
@output_option("text", "json", "wide", "name", "svg", "html")
@each_pod_option
@color_option
def plan(  # noqa: PLR0913, PLR0917 - click
    manifests: tuple[str, ...],
    compare: str | None,
    compare_config_dir: str | None,
    compare_kubelet_version: NamedVersion | None,
    resizes: tuple[str, ...],
    output: Output,
    color: bool | None,  # noqa: FBT001 - click
    *,
    each_pod: bool,
    **node: Any,  # noqa: ANN401 - the node options
) -> None:
    """Place pods on a machine as its kubelet would.

    MANIFEST is a file, a folder of files, or - for standard input.

    To plan a node of a running cluster, give --node NAME and no MANIFEST: its pods, its machine and
    its configuration are read there, with your kubeconfig. To add new pods to those of the cluster,
    give their MANIFEST and --from-cluster.
    """
    if not manifests and not is_from_cluster(manifests, node):
        raise click.UsageError("Missing argument 'MANIFEST...'.")
    other = Other(compare, compare_config_dir, compare_kubelet_version)
    if not is_one_node(node, manifests):
        if other.is_asked or resizes or output == "svg":
            raise click.UsageError(
                "several --node go with none of --compare, --compare-config-dir, "
                "--compare-kubelet-version, --resize and -o svg"
            )
        from pinfold.cli.nodes import plan_nodes  # noqa: PLC0415 - 3 ms

        plan_nodes(manifests, node, output=output, each_pod=each_pod, style=style(color))
        return
    request = load_request(manifests, node, as_kubelet=other.version is not None)
    said = filter(None, (request.planner.node.smt_remark,))
    request = replace(request, notes=(*request.notes, *said, *_unknown_resources(request)))
    placed = placed_pods(request.planner, request.pods, resizes)
    if request.on_node is not None:
        differences = request.on_node.differences(placed.ledger.assignments)
        request = replace(request, notes=(*request.notes, *differences))
    if other.is_asked:
        _compare(request, placed, other, resizes, output, each_pod=each_pod, color=color)
        return
    with progress_line("drawing the plan"):
        document = plan_document(placed, request.notes)
        if output.is_document:
            output.tell(document)
            return
        view = replace(plan_view(document, planned_on(placed, request.owners)), each=each_pod)
        if output == "text":
            # What is on standard error already is not told twice; a picture is for others, too.
            view = replace(view, notes=tuple(n for n in view.notes if n not in request.told_first))
        text = ""
        if output != "html":
            text = render_plan_svg(view) if output == "svg" else render_plan(view, style(color))
    if output == "html":
        from pinfold.cli.pages import page_of_plan  # noqa: PLC0415 - 80 ms

        text = page_of_plan(request, placed, view)
    print_text(text)


def _unknown_resources(request: Request) -> Iterator[str]:
    names = unknown_resources(request.planner, request.pods)
    if names:
        are, them = ("are", "them") if len(names) > 1 else ("is", "it")
        yield f"{', '.join(names)} {are} not known here: planned without {them} (--devices)"
    for name in names:
        meant = class_resource(name.rpartition("/")[2])
        if meant in request.planner.classes.classes:
            yield f"{name} is no class; did you mean {meant}?"


def _compare(  # noqa: PLR0913 - what was asked, and how it is told
    request: Request,
    before: Plan,
    other: Other,
    resizes: tuple[str, ...],
    output: Output,
    *,
    each_pod: bool,
    color: bool | None,
) -> None:
    source, refused = other.source(request.source)
    with input_errors(MachineError, NodeError, prefix=other.prefix(source)):
        config, notes = source.config(request.told)
        known = request.planner
        planner = Planner(
            known.machine,
            config,
            devices=known.devices,
            classes=known.classes,
            kernel=known.kernel,
            quotas=known.quotas,
            as_kubelet=known.as_kubelet,
        )
    notes = (*notes, *filter(None, (planner.node.smt_remark,)))
    after = placed_pods(planner, request.pods, resizes)
    if resizes and known.as_kubelet and not planner.resizes_as_kubelet:
        notes = (*notes, _OWN_RESIZES)
    told = list(dict.fromkeys((*request.notes, *notes)))
    document = compare_document(before, after, told, refused)
    if output.is_document:
        output.tell(document)
        return
    from pinfold.cli.compared_plan import print_compared  # noqa: PLC0415 - 2 ms

    names = other.names((request.source, source), before.planner.config, config)
    print_compared(
        request,
        ((before, request.notes_below if output == "text" else request.notes), (after, notes)),
        names,
        document,
        each_pod=each_pod,
        output=output,
        style=style(color),
    )
