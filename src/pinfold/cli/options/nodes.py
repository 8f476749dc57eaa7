"""The options that describe a node and what runs on it, for ``plan`` and ``explain``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.core import ParameterSource

from pinfold.cli.output import F, InputError, machine_option
from pinfold.config.settings import SETTINGS
from pinfold.core.kubelet.versions import KubeletVersionError, NamedVersion, named_version

resize_option = click.option(
    "--resize",
    "resizes",
    metavar="pod/NAME[/CONTAINER]=N",
    multiple=True,
    help="Once all pods are placed, resize a container to N exclusive CPUs; several in the order "
    "given. The answer shows the node afterwards.",
)


def _named(
    context: click.Context,  # noqa: ARG001 - click
    option: click.Parameter,
    written: str | None,
) -> NamedVersion | None:
    if written is None:
        return None
    try:
        return named_version(written)
    except KubeletVersionError as error:
        raise InputError(f"{option.opts[0]}: {error}") from None


def version_option(name: str, text: str) -> Callable[[F], F]:
    """An option that is the version of a kubelet: a :class:`.NamedVersion`, None without it."""
    return click.option(name, metavar="V", callback=_named, help=text)


kubelet_version_option = version_option(
    "--kubelet-version",
    "Answer as the kubelet of this version, such as 1.34 or v1.35.6. Without it: the version that "
    "a Node or a capture tells, else 1.36.",
)


config_dir_option = click.option(
    "--config-dir",
    metavar="DIR",
    help="A folder of drop-ins that are laid over the configuration, as the kubelet's "
    "--config-dir: its *.conf files, in the order of their names.",
)


node_option = click.option(
    "--node",
    "node",
    metavar="NAME[=MACHINE]",
    multiple=True,
    help="The node. Pods with another spec.nodeName are left out; the rest are planned on MACHINE "
    "or on --machine. plan also takes several nodes, or a pattern such as 'gpu-*' of Nodes among "
    "the manifests: then a scheduler places the pods on them.",
)


def node_options(command: F) -> F:
    """``--node``, its machine, devices and configuration, and the flags that win over it."""
    for setting in reversed(SETTINGS):
        if setting.option is not None:
            command = click.option(
                # A kubelet's own flag is taken as well: it is what people have at hand.
                *dict.fromkeys((setting.option, setting.kubelet_flag)),
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
    command = config_dir_option(command)
    command = click.option(
        "--kubelet-config",
        metavar="FILE",
        help="A KubeletConfiguration file; the flags below win over it.",
    )(command)
    return machine_option(node_option(kubelet_version_option(command)))


def refuse_without_manifests(names: Iterable[str]) -> None:
    """See that none of these parameters is given where an agent is asked.

    Raises:
        click.UsageError: one is; the agent knows its own node.
    """
    context = click.get_current_context()
    options = {one.name: one.opts[-1] for one in context.command.params}
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{options[name]} is for MANIFEST...; the agent knows its own node"
            )
