"""``pinfold state``: show, check, repair and convert the kubelet's state files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pinfold.adapters.statefile.files import (
    StateFileError,
    read_state_file,
    replace_state_file,
)
from pinfold.adapters.statefile.references import read_container_ids, read_pod_uids
from pinfold.core.kubelet.policy_options import (
    PolicyOptionError,
    StaticPolicyOptions,
)
from pinfold.core.machine.machine import MachineError
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.state.cpu_manager_state import CheckpointError, Layout
from pinfold.state.doctor import Circumstances, Finding, Severity, examine, unusable
from pinfold.state.repair import Repair, RepairError, RepairRequest, convert, repair
from pinfold.state.restore import ContainerIDs
from pinfold.state.show import describe, describe_text
from pinfold.state.state_file import StateFile, UnusableFileError

if TYPE_CHECKING:
    from pinfold.core.machine.topology import CPUTopology

_FINDINGS = 1
_UNUSABLE = 2

_USER_ERRORS = (
    StateFileError,
    UnusableFileError,
    RepairError,
    CheckpointError,
    CPUSetError,
    PolicyOptionError,
    MachineError,
)

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_FILE = click.argument("file", type=click.Path(path_type=Path))
_OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print it.",
)


def _node_options(command: _F) -> _F:
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
    document = _read(file)
    if output == "json":
        _print_json({"file": str(file), **_said(lambda: describe(document))})
    else:
        click.echo(_said(lambda: describe_text(document)))


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
    try:
        findings = examine(StateFile.read(_bytes(file)), circumstances)
    except UnusableFileError as error:
        findings, status = [unusable(error, circumstances)], _UNUSABLE
    if any(finding.severity is not Severity.NOTE for finding in findings):
        status = status or _FINDINGS
    if output == "json":
        _print_json(
            {"version": 1, "file": str(file), "findings": [_finding_json(f) for f in findings]}
        )
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
    repaired = _said(lambda: repair(old, request))
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
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(path_type=Path),
    help="Write to another file ('-': to standard output).",
)
def convert_command(
    file: Path, layout: str, containers: Path | None, out: Path | None, *, dry_run: bool
) -> None:
    """Write a cpu_manager_state file in another layout (or describe it as JSON)."""
    old = _read(file)
    if layout == "json":
        text = json.dumps({"file": str(file), **_said(lambda: describe(old))}, indent=2) + "\n"
        converted = Repair(text.encode(), ("layout: JSON, which no kubelet reads",))
        _write(file, old.file, converted, out or Path("-"), dry_run=dry_run)
        return
    ids: ContainerIDs = {}
    if containers is not None:
        ids = _said(lambda: read_container_ids(containers))
    converted = _said(lambda: convert(old, Layout(layout), ids))
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
        topology = _said(lambda: _topology(machine), "--machine: ")
    # Alpha options do not change what is in the file; none of them is refused here.
    gates = {"CPUManagerPolicyAlphaOptions": True}
    parsed = _said(lambda: StaticPolicyOptions.parse(options, gates)) if options else None
    return Circumstances(
        path=str(file),
        topology=topology,
        machine=machine,
        reserved=None
        if reserved_cpus is None
        else _said(lambda: CPUSet.parse(reserved_cpus), "--reserved-cpus: "),
        strict_cpu_reservation=bool(parsed and parsed.strict_cpu_reservation),
        policy=policy,
        pods=_pods(pods),
    )


def _pods(text: str | None) -> frozenset[str] | None:
    return None if text is None else _said(lambda: read_pod_uids(text))


def _topology(machine: str | None) -> CPUTopology:
    """The CPUs that a kubelet on ``machine`` (``None``: this one) sees."""
    # Slow, and rarely needed.
    from pinfold.adapters.machines.source import open_machine  # noqa: PLC0415
    from pinfold.core.machine.kubelet_view import kubelet_view  # noqa: PLC0415

    return kubelet_view(open_machine(machine)).topology


def _said(action: Callable[[], _T], prefix: str = "") -> _T:
    """Run ``action``; what users can be wrong about becomes one line and exit status 2."""
    try:
        return action()
    except _USER_ERRORS as error:
        click.echo(f"Error: {prefix}{error}", err=True)
        raise SystemExit(_UNUSABLE) from None


def _bytes(file: Path) -> bytes:
    return _said(lambda: read_state_file(file))


def _read(file: Path) -> StateFile:
    data = _bytes(file)
    return _said(lambda: StateFile.read(data), f"{file}: ")


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
    before = old if out is None else (_bytes(out) if out.exists() else None)
    backup = _said(lambda: replace_state_file(target, before, new.file))
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


def _finding_json(finding: Finding) -> dict[str, str]:
    return {
        "severity": finding.severity.value,
        "what": finding.what,
        "where": finding.where,
        "why": finding.why,
        "fix": finding.fix,
    }


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
