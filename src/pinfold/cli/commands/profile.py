"""``pinfold profile``: does a machine's configuration fit what its work needs?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from pinfold.adapters.machines.node_facts import open_settings, read_facts
from pinfold.adapters.machines.source import open_machine
from pinfold.admission.model import NodeError, build_node, empty_state
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.nodes import config_dir_option
from pinfold.cli.output import InputError, color_option, input_errors, machine_option, print_text
from pinfold.cli.start.exit_statuses import ANSWERED, UNFIT
from pinfold.cli.terminal import style
from pinfold.config import kubelet
from pinfold.config.kubelet import ConfigError
from pinfold.config.node_profiles import BUILT_IN, kubelet_facts, load_profile, profile_text
from pinfold.config.written import WrittenConfig, read_config
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.profile.check import Finding, NodeCPUs, check, counted
from pinfold.core.profile.profile import Profile
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents.profile import ProfileCheck, ProfileFinding
from pinfold.render.profile_text import render_profile_check

_CONFIGURATIONS: Final = (Path("/etc/pinfold/config.yaml"), Path("/var/lib/kubelet/config.yaml"))
"""Where this machine's agent, or its kubelet, has its configuration."""


@click.group()
def profile() -> None:
    """Compare a machine with a profile of a node."""


@profile.command(name="check")
@click.option(
    "--profile",
    "source",
    default="standard",
    show_default=True,
    metavar="NAME|FILE",
    help=f"{', '.join(BUILT_IN)}, or a file.",
)
@machine_option
@click.option(
    "--kubelet-config",
    metavar="FILE",
    help="A KubeletConfiguration file.  [default, for this machine: the agent's, else the "
    "kubelet's]",
)
@config_dir_option
@click.option(
    "--exclusive",
    metavar="CPUS",
    help="The CPUs that containers may own; without it what the configuration makes of them.",
)
@click.option("--strict", is_flag=True, help="Rows of severity info count as well.")
@output_option("text", "json")
@color_option
def check_command(  # noqa: PLR0913 - the options
    *,
    source: str,
    machine: str | None,
    kubelet_config: str | None,
    config_dir: str | None,
    exclusive: str | None,
    strict: bool,
    output: Output,
    color: bool | None,
) -> None:
    """Say what of this machine, or of a capture, differs from a profile; change nothing.

    The kernel's command line, governor, idle states, huge pages, swap, irqbalance, timers,
    watchdogs, RCU, workqueues and the kubelet's configuration; each with why it matters, where
    that is said, and the line that changes it. What cannot be read is unknown, and does not fit.
    """
    with input_errors(MachineError, ConfigError):
        wanted = load_profile(source)
        found = open_machine(machine)
        tree = open_settings(machine)
        written = _written(kubelet_config, config_dir, is_here=machine is None)
        cpus, notes = _cpus(found, exclusive, written)
    reads = {row.read for row in wanted.rows}
    kubelets = kubelet_facts(reads, written.fields if written.parts else None)
    facts = {**read_facts(tree, reads - kubelets.keys(), found.online, cpus.exclusive), **kubelets}
    document = _document(wanted, found, check(wanted, facts, cpus), cpus, notes, strict=strict)
    if output.is_document:
        output.tell(document)
    else:
        print_text(render_profile_check(document, style(color)))
    raise SystemExit((ANSWERED if document.verdict == "fits" else UNFIT).code)


@profile.command(name="show")
@click.argument("name", required=False)
def show_command(name: str | None) -> None:
    """Print a profile as a file to copy; without a NAME, which profiles there are."""
    if name is None:
        for known in BUILT_IN:
            click.echo(f"{known:<12} {load_profile(known).about}")
        return
    with input_errors(ConfigError):
        click.echo(profile_text(name), nl=False)


def _written(given: str | None, config_dir: str | None, *, is_here: bool) -> WrittenConfig:
    """The configuration as it is written, of this machine where nothing else is said."""
    if given is None and is_here:
        given = next((str(path) for path in _CONFIGURATIONS if path.exists()), None)
    return read_config(given, config_dir)


def _cpus(
    machine: Machine, given: str | None, written: WrittenConfig
) -> tuple[NodeCPUs, tuple[str, ...]]:
    """The CPUs that containers may own, and what was noted of the configuration."""
    online = machine.online
    if given is not None:
        try:
            exclusive = CPUSet.parse(given)
        except CPUSetError as error:
            raise InputError(f"--exclusive: {error}") from None
        if not exclusive or exclusive - online:
            raise InputError(f"--exclusive: {given or 'nothing'} is not among the CPUs {online}")
        return NodeCPUs(online, exclusive), ()
    if not written.parts:
        return NodeCPUs(online), ()
    loaded, path = kubelet.kubelet_config(written), written.name
    if not loaded.config.gives_exclusive_cpus:
        return NodeCPUs(online), (*loaded.notes, f"{path}: no CPU is given out exclusively")
    try:
        view = kubelet_view(machine)
        node = build_node(machine, loaded.config, view=view)
    except NodeError as error:
        return NodeCPUs(online), (*loaded.notes, f"{path}: {error}")
    owned = node.assignable(empty_state(node, view.topology.cpus).ledger)
    if not owned:
        return NodeCPUs(online), (*loaded.notes, f"{path}: it leaves no CPU to be owned")
    return NodeCPUs(online, owned), loaded.notes


def _document(  # noqa: PLR0913 - what is told, one each
    wanted: Profile,
    machine: Machine,
    findings: tuple[Finding, ...],
    cpus: NodeCPUs,
    notes: tuple[str, ...],
    *,
    strict: bool,
) -> ProfileCheck:
    return ProfileCheck(
        profile=wanted.name,
        machine=machine.name,
        verdict="differs" if any(one.counts(strict=strict) for one in findings) else "fits",
        online=str(cpus.online),
        exclusive=None if cpus.exclusive is None else str(cpus.exclusive),
        counts=dict(counted(findings)),
        rows=[
            ProfileFinding(
                name=one.row.name,
                state=one.state,
                severity=one.row.severity,
                what=one.row.what,
                read=one.row.read,
                found=one.found or None,
                expected=str(one.row.expect),
                remark=one.remark or None,
                why=one.row.why,
                source=one.row.source,
                change=one.change,
            )
            for one in findings
        ],
        notes=notes,
    )
