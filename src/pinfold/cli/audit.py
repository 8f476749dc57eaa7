"""``pinfold audit``: does the kernel agree with what is recorded?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinfold.cli.client import Client, socket_option
from pinfold.cli.output import (
    InputError,
    color_option,
    input_errors,
    output_option,
    print_json,
    print_text,
    style,
)

if TYPE_CHECKING:
    from pinfold.core.audit_findings import Finding
    from pinfold.core.audit_record import AuditRecord, Owner
    from pinfold.core.audit_snapshot import KernelSnapshot
    from pinfold.core.cpuset import CPUSet
    from pinfold.state.doctor import Circumstances
    from pinfold.state.ledger import Ledger
    from pinfold.state.state_file import StateFile

KUBELET_STATE = Path("/var/lib/kubelet/cpu_manager_state")
OWN_STATE = Path("/var/lib/pinfold/cpu_manager_state")
OWN_TREE = "pinfold"
_ATTEMPTS = 5


@click.command()
@click.option("--kubelet", is_flag=True, help="Audit a kubelet: its state file and its cgroups.")
@click.option(
    "--state",
    "state_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"The cpu_manager_state file.  [default: {OWN_STATE}, with --kubelet {KUBELET_STATE}]",
)
@click.option(
    "--owner",
    "owners",
    multiple=True,
    metavar="CPUS=CGROUP",
    help="A cgroup (a folder, or its path in the hierarchy) that owns CPUs, such as "
    "2-3=/sys/fs/cgroup/db.slice; without --kubelet and --state, the only owners.",
)
@click.option("--strict", is_flag=True, help="Findings of severity info count as well.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    metavar="DIR",
    help="Read proc, sys and run below DIR: another root that is mounted, or a captured tree.",
)
@socket_option
@output_option("text", "json")
@color_option
def audit(  # noqa: PLR0913 - the options
    *,
    kubelet: bool,
    state_path: Path | None,
    owners: tuple[str, ...],
    strict: bool,
    root: Path,
    socket: str,
    output: str,
    color: bool | None,
) -> None:
    """Does the kernel agree?  Compares the record of exclusive CPUs with the running kernel.

    Looks at the owners' cgroups and at every other process, thread and interrupt. Changes
    nothing, and needs no agent; each finding names the command that mends it.

    Exit status: 0 the kernel agrees (info does not count), 1 findings, 2 the input is at fault.
    """
    from pinfold.core.audit import audit as compare  # noqa: PLC0415 - after --help
    from pinfold.core.audit import audit_document  # noqa: PLC0415
    from pinfold.node.ports import PortError  # noqa: PLC0415

    given = tuple(_parse_owner(text) for text in owners)
    with input_errors(PortError):
        if given and not kubelet and state_path is None:
            snapshot, record = _given(root)
        else:
            path, tree = root / KUBELET_STATE.relative_to("/"), OWN_TREE
            if not kubelet and state_path is None:
                path, tree = _own_place(root, socket)
            snapshot, record = _recorded(state_path or path, root, kubelet=kubelet, tree=tree)
    report = compare(snapshot, _with_given(snapshot, record, given))
    if output == "json":
        print_json(audit_document(report, strict=strict))
    else:
        from pinfold.render.audit_text import render_audit  # noqa: PLC0415 - only for text

        print_text(render_audit(report, style(color), strict=strict))
    raise SystemExit(0 if report.is_clean(strict=strict) else 1)


def _parse_owner(text: str) -> tuple[CPUSet, str]:
    from pinfold.core.cpuset import CPUSet, CPUSetError  # noqa: PLC0415 - after --help

    cpus, equals, place = text.partition("=")
    if not equals or not place.strip("/"):
        raise click.UsageError(f"--owner {text!r}: expected CPUS=CGROUP, such as 2-3=/db.slice")
    try:
        found = CPUSet.parse(cpus)
    except CPUSetError as error:
        raise click.UsageError(f"--owner {text!r}: {error}") from None
    if not found:
        raise click.UsageError(f"--owner {text!r}: no CPUs; expected CPUS=CGROUP")
    return found, place


def _given(root: Path) -> tuple[KernelSnapshot, AuditRecord]:
    from pinfold.adapters.procfs.snapshot import read_snapshot  # noqa: PLC0415 - after --help
    from pinfold.core.audit_record import AuditRecord  # noqa: PLC0415

    return read_snapshot(root), AuditRecord("--owner")


def _with_given(
    snapshot: KernelSnapshot, record: AuditRecord, given: tuple[tuple[CPUSet, str], ...]
) -> AuditRecord:
    from dataclasses import replace  # noqa: PLC0415 - after --help

    from pinfold.adapters.procfs.owners import locate_given  # noqa: PLC0415

    found: list[Owner] = [locate_given(snapshot, place, cpus) for cpus, place in given]
    return replace(record, owners=(*record.owners, *found))


def _own_place(root: Path, socket: str) -> tuple[Path, str]:
    """Where the record is, and what the cgroup tree is called: as a running agent says."""
    default = root / OWN_STATE.relative_to("/")
    if root != Path("/"):
        return default, OWN_TREE
    try:
        agent = Client(socket, timeout=5.0).get("/v1/status")["agent"]
    except click.ClickException:
        return default, OWN_TREE
    tree = str(agent.get("cgroups", {}).get("path", OWN_TREE))
    return Path(agent["state_dir"]) / OWN_STATE.name, tree.rpartition("/")[2]


def _recorded(
    path: Path, root: Path, *, kubelet: bool, tree: str
) -> tuple[KernelSnapshot, AuditRecord]:
    """The record and the kernel at one moment: a record that changes meanwhile is read again."""
    from pinfold.adapters.procfs.snapshot import read_snapshot  # noqa: PLC0415 - after --help
    from pinfold.adapters.statefile.files import (  # noqa: PLC0415
        StateFileError,
        read_state_file,
    )

    with input_errors(StateFileError):
        if not path.exists():
            raise InputError(f"{path}: no such file; {_no_record(kubelet=kubelet)}")
        data = read_state_file(path)
        for _ in range(_ATTEMPTS):
            snapshot = read_snapshot(root)
            again = read_state_file(path)
            if again == data:
                break
            data = again
    return snapshot, _record(data, path, snapshot, root, kubelet=kubelet, tree=tree)


def _no_record(*, kubelet: bool) -> str:
    if kubelet:
        return (
            "a kubelet writes it when its CPU manager starts; name it with --state when the "
            "kubelet has another --root-dir"
        )
    return (
        "no agent has run here; name its file with --state, a cgroup with --owner, or audit a "
        "kubelet with --kubelet"
    )


def _record(  # noqa: PLR0913 - what a record is made of
    data: bytes, path: Path, snapshot: KernelSnapshot, root: Path, *, kubelet: bool, tree: str
) -> AuditRecord:
    from pinfold.adapters.procfs.owners import locate_kubelet, locate_own  # noqa: PLC0415 - late
    from pinfold.core.audit_record import AuditRecord  # noqa: PLC0415
    from pinfold.state.cpu_manager_state import CheckpointError  # noqa: PLC0415
    from pinfold.state.cpu_manager_state import CPUManagerCheckpoint as Checkpoint  # noqa: PLC0415
    from pinfold.state.doctor import Circumstances  # noqa: PLC0415
    from pinfold.state.state_file import (  # noqa: PLC0415
        StateFile,
        UnusableFileError,
        ledger_of,
        pod_sets,
    )

    circumstances = Circumstances(path=str(path))
    try:
        state = StateFile.read(data)
    except UnusableFileError as error:
        raise InputError(f"{path}: {error}; see pinfold state check {path}") from None
    if not isinstance(state.document, Checkpoint):
        raise InputError(f"{path}: a {state.kind.value} file; the audit needs cpu_manager_state")
    try:
        ledger: Ledger = ledger_of(state.document)
        pods = pod_sets(state.document)
    except CheckpointError as error:
        raise InputError(f"{path}: {error}; see pinfold state check {path}") from None
    assignments = {uid: dict(sets) for uid, sets in ledger.assignments.items()}
    for uid, cpus in pods.items():
        assignments.setdefault(uid, {})[""] = cpus
    located = (
        locate_kubelet(snapshot, assignments, root)
        if kubelet
        else locate_own(snapshot, assignments, tree)
    )
    return AuditRecord(
        source=str(path),
        owners=located.owners,
        # Under the policy none the kubelet records no pool.
        shared=ledger.default or None if ledger.policy_name == "none" else ledger.default,
        shared_cgroups=located.shared,
        repair=circumstances.repair("--drop-missing-pods {pod}")
        if kubelet
        else "pinfold delete pod/{pod}",
        faults=_faults(state, circumstances),
    )


def _faults(state: StateFile, circumstances: Circumstances) -> tuple[Finding, ...]:
    """What the doctor of state files says, as findings of the audit."""
    from pinfold.core.audit_findings import (  # noqa: PLC0415 - after --help
        RECORD_BROKEN,
        RECORD_DOUBTFUL,
        Finding,
    )
    from pinfold.state.doctor import Severity, examine  # noqa: PLC0415

    return tuple(
        Finding(
            RECORD_BROKEN if fault.severity is Severity.ERROR else RECORD_DOUBTFUL,
            fault.what,
            fault.where,
            fix=(fault.fix,) if fault.fix.startswith("pinfold ") else (),
            why=fault.why,
        )
        for fault in examine(state, circumstances)
        if fault.severity is not Severity.NOTE
    )
