"""``pinfold audit``: does the kernel agree with what is recorded?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import click
from msgspec.structs import replace

from pinfold.adapters.procfs.containers import find_containers
from pinfold.adapters.procfs.files import KernelFiles
from pinfold.adapters.procfs.snapshot import read_beside
from pinfold.adapters.procfs.tasks import read_namespaces
from pinfold.adapters.statefile.files import StateFileError, read_state_files
from pinfold.audit.audit import AuditReport, audit_document
from pinfold.audit.audit import audit as compare
from pinfold.audit.containers import namespace_pids
from pinfold.audit.findings import RUNTIME_RECORD
from pinfold.audit.located import locate_given
from pinfold.audit.record import AuditRecord
from pinfold.audit.recorded import KUBELET_STATE, OWN_STATE, Place, RecordError, Seen, recorded
from pinfold.audit.snapshot import KernelSnapshot
from pinfold.audit.told import AgentSays, Told
from pinfold.cli.client import Client, socket_option
from pinfold.cli.forms import Output, output_option
from pinfold.cli.options.agents import agents_node_option
from pinfold.cli.output import InputError, color_option, input_errors, print_text
from pinfold.cli.progress_line import progress_line
from pinfold.cli.start.exit_statuses import ANSWERED, DIFFERS
from pinfold.cli.terminal import style
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents.status import Status
from pinfold.ports.errors import PortError
from pinfold.render.audit_text import render_audit

_LOOKS: Final = 5
"""How often the runtime is asked while its record differs: an agent lets it follow."""
_PAUSE: Final = 0.3
"""Seconds between two looks."""
_AGENT_SECONDS: Final = 5.0


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
@click.option(
    "--runtime-endpoint",
    default="",
    metavar="ADDRESS",
    help="The container runtime that knows the containers' names and has CPUs on record, such as "
    "unix:///run/containerd/containerd.sock.  [default: CONTAINER_RUNTIME_ENDPOINT, "
    "/etc/crictl.yaml, the usual places]",
)
@click.option("--strict", is_flag=True, help="Findings of severity info count as well.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    metavar="DIR",
    help="Read proc, sys and run below DIR: another root that is mounted, or a captured tree.",
)
@agents_node_option
@socket_option
@output_option("text", "json")
@color_option
def audit(  # noqa: PLR0913 - the options
    *,
    kubelet: bool,
    state_path: Path | None,
    owners: tuple[str, ...],
    runtime_endpoint: str,
    strict: bool,
    root: Path,
    socket: str,
    output: Output,
    color: bool | None,
) -> None:
    """Compare who should own CPUs with the running kernel.

    It looks at the owners' cgroups, and at every other process, thread and interrupt. It changes
    nothing, and needs no agent; each finding names the command that mends it.
    """
    given = tuple(_parse_owner(text) for text in owners)
    place = Place(root, state_path, kubelet=kubelet, only_given=bool(given))
    with input_errors(PortError, StateFileError, RecordError):
        _check_there(given, root)
        with progress_line("comparing with the kernel"):
            report = _look(place, given, socket, runtime_endpoint)
    if output.is_document:
        output.tell(audit_document(report, strict=strict))
    else:
        print_text(render_audit(report, style(color), strict=strict))
    raise SystemExit((ANSWERED if report.is_clean(strict=strict) else DIFFERS).code)


def _look(
    place: Place, given: tuple[tuple[CPUSet, str], ...], socket: str, endpoint: str
) -> AuditReport:
    """Compare; where only the runtime is behind, which an agent mends, look again."""
    for attempt in range(_LOOKS):
        report = compare(*_read(place, given, socket, endpoint))
        behind = any(finding.kind is RUNTIME_RECORD for finding in report.findings)
        if not behind or not place.is_live or attempt == _LOOKS - 1:
            break
        time.sleep(_PAUSE)
    return report


def _read(
    place: Place, given: tuple[tuple[CPUSet, str], ...], socket: str, endpoint: str
) -> tuple[KernelSnapshot, AuditRecord]:
    """The kernel and the record, as nearly at one moment as they can be had."""
    agent = _ask_agent(socket) if place.wants_agent else None
    path = place.state_file(agent) if place.has_record else None
    if path is not None and not path.exists():
        raise InputError(f"{path}: no such file; {place.without_record}")
    snapshot, files = read_beside(
        place.root, lambda: None if path is None else read_state_files(path)
    )
    told = Told()
    if endpoint or place.wants_runtime(snapshot, agent):
        told = _ask_runtime(endpoint or (agent.endpoint if agent is not None else ""), place.root)
    if told.problem:
        snapshot = replace(snapshot, unseen=(*snapshot.unseen, told.problem))
    known = (*told.containers, *(agent.containers if agent is not None else ()))
    containers = find_containers(snapshot, KernelFiles(place.root), known)
    record = AuditRecord("--owner", containers=containers)
    if files is not None:
        record = recorded(place, files, Seen(snapshot, containers, known, agent))
    owners = (locate_given(snapshot, where, cpus) for cpus, where in given)
    record = replace(record, owners=(*record.owners, *owners), runtime=told.runtime)
    if pids := namespace_pids(snapshot, record):
        namespaces = read_namespaces(KernelFiles(place.root), pids)
        snapshot = replace(snapshot, namespaces=namespaces)
    return snapshot, record


def _ask_agent(socket: str) -> AgentSays | None:
    """A running agent's word; None where none runs."""
    try:
        return AgentSays.of_status(
            Client(socket, timeout=_AGENT_SECONDS).read("/v1/status", Status)
        )
    except click.ClickException:
        return None


def _ask_runtime(endpoint: str, root: Path) -> Told:
    from pinfold.adapters.cri import tell_containers  # noqa: PLC0415 - 39 ms

    return asyncio.run(tell_containers(endpoint, root))


def _check_there(given: tuple[tuple[CPUSet, str], ...], root: Path) -> None:
    present = KernelFiles(root).cpus("/sys/devices/system/cpu/present")
    for cpus, where in given:
        if present and cpus - present:
            raise click.UsageError(
                f"--owner {cpus}={where}: there is no CPU {cpus - present}; this machine has CPUs "
                f"{present}"
            )


def _parse_owner(text: str) -> tuple[CPUSet, str]:
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
