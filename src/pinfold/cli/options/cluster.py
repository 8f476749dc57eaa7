"""The options by which ``plan`` and ``explain`` read a running cluster, as ``kubectl`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pinfold.cli.output import F
from pinfold.ports.kubernetes import PROXY_WARNING


def cluster_options(command: F) -> F:
    """``--from-cluster``, how the API server is reached, and what else is read there."""
    command = click.option(
        "--verbose",
        is_flag=True,
        help="List every request to the API server on standard error.",
    )(command)
    command = click.option(
        "--configz",
        is_flag=True,
        help="Ask the kubelet for its configuration through the API server. Whoever asks needs "
        f"{PROXY_WARNING}.",
    )(command)
    command = click.option(
        "--node-resource-topology",
        is_flag=True,
        help="Where nothing else says what machine a node is: take the NUMA nodes of its "
        "NodeResourceTopology. It has no threads, sockets and caches.",
    )(command)
    command = click.option(
        "--context", metavar="NAME", help="Read the cluster of this context of the kubeconfig."
    )(command)
    command = click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Read the cluster of this kubeconfig. Without it: KUBECONFIG, ~/.kube/config, or in "
        "a pod its service account.",
    )(command)
    return click.option(
        "--from-cluster",
        is_flag=True,
        help="Read the nodes and their pods from the cluster, with your kubeconfig; nothing is "
        "written there. MANIFEST... are new pods that come after these.",
    )(command)


def is_from_cluster(manifests: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Whether a cluster is read: where it is said, and where nodes are named and no manifests."""
    if options.get("from_cluster") or options.get("kubeconfig") or options.get("context"):
        return True
    return not manifests and bool(options.get("node")) and "from_cluster" in options


def check_cluster_options(manifests: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse options of a cluster where none is read.

    Raises:
        click.UsageError: one is given, or there is nothing to read.
    """
    if is_from_cluster(manifests, options):
        return
    for name in ("configz", "node_resource_topology", "verbose"):
        if options.get(name):
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --from-cluster")
