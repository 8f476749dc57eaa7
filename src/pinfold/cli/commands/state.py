"""``pinfold state``: show, check, repair and convert the kubelet's state files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.statefile.files import (
    StateFileError,
    read_state_file,
    replace_state_file,
)
from pinfold.adapters.statefile.references import read_container_ids, read_pod_uids
from pinfold.cli.output import F, input_errors, output_option
from pinfold.core.kubelet.node_config import STATIC
from pinfold.core.kubelet.own_policies import OWN_POLICIES
from pinfold.core.kubelet.policy_options import (
    PolicyOptionError,
    StaticPolicyOptions,
)
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import MachineError
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents.state import StateCheck, StateFinding
from pinfold.state.conversion import convert
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.doctor import Circumstances, Finding, Severity, examine, unusable
from pinfold.state.layouts import Layout
from pinfold.state.repair import Repair, RepairError, RepairRequest, repair
from pinfold.state.show import describe, describe_text
from pinfold.state.state_file import StateFile, UnusableFileError

_FINDINGS = 1
_UNUSABLE = 2

_USER_ERRORS = (
    StateFileError,
    UnusableFileError,
    RepairError,
    CheckpointError,
    CPUSetError,
    PolicyOptionError,
)


_FILE = click.argument("file", type=click.Path(path_type=Path))
_OUTPUT = output_option("text", "json")


def _node_options(command: F) -> F:
    for option in (
        click.option("--machine", metavar="SRC", help="The machine the file belongs to."),
        click.option("--this-machine", is_flag=True, help="It belongs to this machine."),
        click.option("--reserved-cpus", metavar="LIST", help="reservedSystemCPUs."),
        click.option("--policy", metavar="NAME", help="The policy that is configured now."),
        click.option(
            "--policy-option",
            "policy_options",
            metavar="K=V",
            multiple=True,
            help="A policy option, such as strict-cpu-reservation=true.",
        ),
        click.option(
            "--pods",
            metavar="UIDS|FILE",
            help="The pods that exist: uids with commas, or a file (kubectl or crictl pods "
            "-o json, manifests with uids, one uid a line).",
        ),
    ):
        command = option(command)
    return command


@click.group(name="state")
def state() -> None:
    """Look after the kubelet's state files.

    Understands cpu_manager_state, memory_manager_state and kubelet_internal_checkpoint, in
    every layout; which one a file is, its content tells.
    """


@state.command()
@_FILE
@_OUTPUT
def show(file: Path, output: str) -> None:
    """Print a state file readably."""
    with input_errors(*_USER_ERRORS):
        document = _read(file)
        if output == "json":
            click.echo(_json(describe(document, str(file))))
        else:
            click.echo(describe_text(document))


@state.command()
@_FILE
@_node_options
@_OUTPUT
def check(file: Path, output: str, **node: Any) -> None:  # noqa: ANN401 - the options of click
    """Say what a kubelet would make of a state file.

    Exit status: 0 all well (notes do not count), 1 findings, 2 the file is of no use.
    """
    circumstances = _circumstances(file, **node)
    status = 0
    with input_errors(StateFileError):
        data = read_state_file(file)
    try:
        findings = examine(StateFile.read(data), circumstances)
    except UnusableFileError as error:
        findings, status = [unusable(error, circumstances)], _UNUSABLE
    if any(finding.severity is not Severity.NOTE for finding in findings):
        status = status or _FINDINGS
    if output == "json":
        found = [_finding_row(finding) for finding in findings]
        click.echo(_json(StateCheck(file=str(file), findings=found)))
    else:
        _print_findings(file, findings)
    raise SystemExit(status)


@state.command(name="repair")
@_FILE
@_node_options
@click.option("--drop-missing-pods", metavar="UID,...", help="Pods that are gone.")
@click.option("--keep-pods", metavar="UID,...", help="The only pods that still exist.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path),
    help="Write to another file ('-': to standard output).",
)
def repair_command(
    file: Path,
    *,
    drop_missing_pods: str | None,
    keep_pods: str | None,
    dry_run: bool,
    out: Path | None,
    **node: Any,  # noqa: ANN401 - the options of click
) -> None:
    """Make a state file one with which the kubelet starts.

    Stop the kubelet first. What was in the file is kept as FILE.bak-N. Drops the entries of
    vanished pods, takes CPUs that are gone or reserved from their containers, computes the
    shared pool anew, and corrects the checksum.
    """
    circumstances = _circumstances(file, **node)
    with input_errors(*_USER_ERRORS):
        old = _read(file)
        if keep_pods is not None and circumstances.pods is not None:
            raise click.UsageError("--pods and --keep-pods exclude each other")
        request = RepairRequest(
            drop_pods=_pods(drop_missing_pods) or frozenset(),
            keep_pods=circumstances.pods if keep_pods is None else _pods(keep_pods),
            machine=None if circumstances.topology is None else circumstances.topology.cpus,
            reserved=circumstances.reserved or CPUSet(),
            strict_cpu_reservation=circumstances.strict_cpu_reservation,
            policy=circumstances.policy,
        )
        repaired = repair(old, request)
        _write(file, old.file, repaired, out, dry_run=dry_run)
    for finding in examine(StateFile.read(repaired.file), circumstances):
        if finding.severity is not Severity.NOTE:
            click.echo(f"still {finding.severity.value}: {finding.what}", err=True)


@state.command(name="convert")
@_FILE
@click.option("--to", "layout", type=click.Choice(["v1", "v2", "v3", "v4", "json"]), required=True)
@click.option(
    "--containers",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The containers' ids, which the v1 layout needs: the output of `crictl ps -a -o json`, "
    "or lines POD_UID CONTAINER_NAME CONTAINER_ID.",
)
@click.option(
    "--drop-pod-entries",
    is_flag=True,
    help="Drop pods that have CPUs or memory as a whole, where the layout has no place for that.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path),
    help="Write to another file ('-': to standard output).",
)
def convert_command(  # noqa: PLR0913 - the options of click
    file: Path,
    layout: str,
    containers: Path | None,
    out: Path | None,
    *,
    drop_pod_entries: bool,
    dry_run: bool,
) -> None:
    """Write a state file in another layout (or describe it as JSON).

    cpu_manager_state has the layouts v1 to v4, memory_manager_state v1 to v3. Stop the kubelet
    first; what was in the file is kept as FILE.bak-N. Refused where the layout has no place for
    something in the file.
    """
    with input_errors(*_USER_ERRORS):
        old = _read(file)
        if layout == "json":
            text = _json(describe(old, str(file))) + "\n"
            converted = Repair(text.encode(), ("layout: JSON, which no kubelet reads",))
            out = out or Path("-")
        else:
            ids = {} if containers is None else read_container_ids(containers)
            converted = convert(old, Layout(layout), ids, drop_pod_entries=drop_pod_entries)
        _write(file, old.file, converted, out, dry_run=dry_run)


def _circumstances(  # noqa: PLR0913 - the options that check and repair share
    file: Path,
    *,
    machine: str | None,
    this_machine: bool,
    reserved_cpus: str | None,
    policy: str | None,
    policy_options: tuple[str, ...],
    pods: str | None,
) -> Circumstances:
    if machine is not None and this_machine:
        raise click.UsageError("--machine and --this-machine exclude each other")
    options = {}
    for text in policy_options:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--policy-option {text!r}: expected KEY=VALUE")
        options[key] = value
    topology = None
    if machine is not None or this_machine:
        with input_errors(MachineError, prefix="--machine: "):
            topology = _topology(machine)
    with input_errors(CPUSetError, prefix="--reserved-cpus: "):
        reserved = None if reserved_cpus is None else CPUSet.parse(reserved_cpus)
    with input_errors(PolicyOptionError, StateFileError):
        # Alpha options do not change what is in the file; none of them is refused here.
        gates = {"CPUManagerPolicyAlphaOptions": True}
        parsed = StaticPolicyOptions.parse(options, gates) if options else None
        return Circumstances(
            path=str(file),
            topology=topology,
            machine=machine,
            reserved=reserved,
            strict_cpu_reservation=bool(parsed and parsed.strict_cpu_reservation),
            # The state of these says static: they place as it does.
            policy=STATIC if policy in OWN_POLICIES else policy,
            pods=_pods(pods),
        )


def _pods(text: str | None) -> frozenset[str] | None:
    return None if text is None else read_pod_uids(text)


def _topology(machine: str | None) -> CPUTopology:
    """The CPUs that a kubelet on ``machine`` (``None``: this one) sees."""
    return kubelet_view(open_machine(machine)).topology


def _read(file: Path) -> StateFile:
    data = read_state_file(file)
    with input_errors(UnusableFileError, prefix=f"{file}: "):
        return StateFile.read(data)


def _write(file: Path, old: bytes, new: Repair, out: Path | None, *, dry_run: bool) -> None:
    """Print what changes, and write it unless it is a dry run."""
    to_output = out is not None and str(out) == "-"
    for change in new.changes:
        click.echo(f"  - {change}", err=to_output)
    if not new.changes:
        click.echo(f"{file}: nothing to change", err=to_output)
        if out is None:
            return
    if dry_run:
        click.echo("dry run: nothing is written", err=to_output)
        return
    if to_output:
        click.echo(new.file, nl=False)
        return
    target = file if out is None else out
    before = old if out is None else (read_state_file(out) if out.exists() else None)
    backup = replace_state_file(target, before, new.file)
    kept = "" if backup is None else f", what it was is kept as {backup}"
    click.echo(f"{target}: written{kept}")


def _print_findings(file: Path, findings: list[Finding]) -> None:
    if not findings:
        click.echo(f"{file}: fine")
    for finding in findings:
        click.echo(f"{finding.severity.value}: {finding.what}")
        click.echo(f"  where: {finding.where}")
        click.echo(f"  why:   {finding.why}")
        click.echo(f"  mend:  {finding.fix}")


def _json(document: object) -> str:
    # The name of a file need not be Unicode, and texts of one that is not trusted stay escaped.
    return json.dumps(msgspec.to_builtins(document), indent=2)


def _finding_row(finding: Finding) -> StateFinding:
    return StateFinding(
        severity=finding.severity.value,
        what=finding.what,
        where=finding.where,
        why=finding.why,
        fix=finding.fix,
    )
