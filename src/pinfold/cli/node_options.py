"""The options that describe a node and what runs on it, for ``plan`` and ``explain``."""

from __future__ import annotations

import click

from pinfold.cli.output import F, machine_option
from pinfold.config.settings import SETTINGS

manifest_arguments = click.argument("manifests", nargs=-1, required=True, metavar="MANIFEST...")


resize_option = click.option(
    "--resize",
    "resizes",
    metavar="pod/NAME[/CONTAINER]=N",
    multiple=True,
    help="Resize a container to N exclusive CPUs once all pods are placed; in the order given, and "
    "all else is shown as it is afterwards.",
)


def node_options(command: F) -> F:
    """``--machine``, ``--devices``, ``--kubelet-config`` and the flags that win over it."""
    for setting in reversed(SETTINGS):
        if setting.option is not None:
            command = click.option(
                setting.option,
                setting.attribute,
                metavar=setting.metavar,
                multiple=setting.pairs,
                help=setting.help,
            )(command)
    command = click.option(
        "--devices",
        metavar="FILE",
        help="What the device plugins list: a file of kind Devices, or a kubelet's "
        "kubelet_internal_checkpoint.",
    )(command)
    command = click.option(
        "--kubelet-config",
        metavar="FILE",
        help="A KubeletConfiguration file; the flags below win over it.",
    )(command)
    return machine_option(command)
