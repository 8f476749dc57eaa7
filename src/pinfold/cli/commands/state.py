"""``pinfold state``: show, check, repair and convert the kubelet's state files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import UNSET

from pinfold.adapters.statefile.files import (
    StateFileError,
    read_state_file,
    replace_state_file,
)
from pinfold.adapters.statefile.references import read_container_ids
from pinfold.cli.forms import OutFile, Output, output_option
from pinfold.cli.options.state import (
    circumstances_of,
    kubelet_of,
    pods_of,
    state_node_options,
    writer_options,
)
from pinfold.cli.output import InputError, input_errors
from pinfold.cli.progress_line import progress_line
from pinfold.cli.start.exit_statuses import FINDINGS, NOT_TAKEN, UNMENDED, UNUSABLE
from pinfold.core.kubelet.policy_options import (
    PolicyOptionError,
)
from pinfold.core.kubelet.versions import NamedVersion
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents.state import StateCheck, StateFinding
from pinfold.state import acceptance
from pinfold.state.conversion import convert
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.doctor import examine, unusable
from pinfold.state.findings import Circumstances, Finding, Severity
from pinfold.state.layouts import Layout
from pinfold.state.repair import Repair, RepairError, RepairRequest, repair
from pinfold.state.show import describe, describe_text
from pinfold.state.state_file import StateFile, UnusableFileError
from pinfold.views.state import versions_document, versions_text

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


@click.group(name="state")
def state() -> None:
    """Check, repair and convert the kubelet's state files.

    It reads cpu_manager_state, memory_manager_state and kubelet_internal_checkpoint, in every
    layout, and recognizes a file by its content.
    """


@state.command()
@_FILE
@_OUTPUT
def show(file: Path, output: Output) -> None:
    """Print a state file readably."""
    with input_errors(*_USER_ERRORS):
        document = _read(file)
        if output.is_document:
            _tell(describe(document, str(file)), output)
        else:
            click.echo(describe_text(document))


@state.command()
@_FILE
@state_node_options
@_OUTPUT
def check(file: Path, output: Output, **node: Any) -> None:  # noqa: ANN401 - the options of click
    """Say what a kubelet would make of a state file."""
    circumstances = circumstances_of(file, **node)
    status = 0
    with input_errors(StateFileError):
        data = read_state_file(file)
    try:
        findings = examine(StateFile.read(data), circumstances)
    except UnusableFileError as error:
        findings, status = [unusable(error, circumstances)], UNUSABLE.code
    if any(finding.severity is not Severity.NOTE for finding in findings):
        status = status or FINDINGS.code
    if output.is_document:
        found = [_finding_row(finding) for finding in findings]
        version = circumstances.version
        kubelet = UNSET if version is None else str(version)
        _tell(StateCheck(file=str(file), kubelet=kubelet, findings=found), output)
    else:
        _print_findings(file, findings)
    raise SystemExit(status)


@state.command()
@_FILE
@state_node_options
@writer_options
@_OUTPUT
def versions(
    file: Path,
    output: Output,
    written_by: NamedVersion | None,
    writer_feature_gates: tuple[str, ...],
    **node: Any,  # noqa: ANN401 - the options of click
) -> None:
    """Say which kubelets take a state file, and what an upgrade or a downgrade does to it.

    Of every known version, without and with PodLevelResourceManagers; of one only with
    --kubelet-version. With --written-by, that kubelet takes the file first and writes it anew.
    """
    circumstances = circumstances_of(file, **node)
    with input_errors(*_USER_ERRORS):
        found = _read(file)
        if written_by is None and writer_feature_gates:
            raise click.UsageError("--writer-feature-gate needs --written-by")
        writer = None
        if written_by is not None:
            writer = _writer(found, kubelet_of(written_by, writer_feature_gates), circumstances)
            found = acceptance.written_by(found, writer.kubelet, circumstances)
    asked = acceptance.KUBELETS
    if circumstances.version is not None:
        pod_level = bool(circumstances.pod_level)
        asked = (acceptance.Kubelet(circumstances.version, pod_level),)
    told = [acceptance.acceptance(found, kubelet, circumstances) for kubelet in asked]
    if output.is_document:
        _tell(versions_document(file, found, writer, told), output)
    else:
        click.echo(versions_text(file, found, writer, told))
    judged = told if writer is None else [writer, *told]
    if circumstances.version is not None and not all(one.keeps_all for one in judged):
        raise SystemExit(NOT_TAKEN.code)


def _writer(
    found: StateFile, writer: acceptance.Kubelet, node: Circumstances
) -> acceptance.Acceptance:
    """What the kubelet makes of the file that is to write it anew."""
    before = acceptance.acceptance(found, writer, node)
    if before.outcome is acceptance.Outcome.REFUSED:
        raise RepairError(f"{node.path}: kubelet {writer} does not take it itself: {before.error}")
    return before


@state.command(name="repair")
@_FILE
@state_node_options
@click.option("--drop-missing-pods", metavar="UID,...", help="Pods that are gone.")
@click.option("--keep-pods", metavar="UID,...", help="The only pods that still exist.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option(
    "-o",
    "--output",
    "out",
    type=OutFile(path_type=Path),
    metavar="FILE",
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
    shared pool anew, and corrects the checksum. What is left
    that this does not mend, or that a kubelet refuses, is said on standard error.
    """
    circumstances = circumstances_of(file, **node)
    with input_errors(*_USER_ERRORS):
        old = _read(file)
        if keep_pods is not None and circumstances.pods is not None:
            raise click.UsageError("--pods and --keep-pods exclude each other")
        request = RepairRequest(
            drop_pods=pods_of(drop_missing_pods) or frozenset(),
            keep_pods=circumstances.pods if keep_pods is None else pods_of(keep_pods),
            machine=None if circumstances.topology is None else circumstances.topology.cpus,
            reserved=circumstances.reserved or CPUSet(),
            strict_cpu_reservation=circumstances.strict_cpu_reservation,
            policy=circumstances.policy,
        )
        with progress_line("repairing"):
            repaired = repair(old, request)
        _write(file, old.file, repaired, out, dry_run=dry_run)
    found = examine(StateFile.read(repaired.file), circumstances)
    left = [finding for finding in found if finding.severity is not Severity.NOTE]
    for finding in left:
        click.echo(f"still {finding.severity.value}: {finding.what}", err=True)
        click.echo(f"  mend:  {finding.fix}", err=True)
    if left:
        raise SystemExit(UNMENDED.code)


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
    type=OutFile(path_type=Path),
    metavar="FILE",
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


def _read(file: Path) -> StateFile:
    data = read_state_file(file)
    try:
        return StateFile.read(data)
    except UnusableFileError as error:
        # A state file is one line of JSON; what is something else is told so.
        other = "" if data.lstrip()[:1] == b"{" else "; it is no state file of a kubelet"
        raise InputError(f"{file}: {error}{other}") from None


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


def _tell(document: object, output: Output) -> None:
    if output == "json":
        click.echo(_json(document))
    else:
        output.tell(document)


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
