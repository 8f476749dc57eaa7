"""``pinfold audit``: does the kernel agree with what is recorded?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

from pinfold.cli.audit_containers import Told, ask_agent, ask_runtime
from pinfold.cli.audit_record import KUBELET_STATE, OWN_STATE, Place, read_record
from pinfold.cli.client import socket_option
from pinfold.cli.output import (
    color_option,
    input_errors,
    output_option,
    print_json,
    print_text,
    style,
)

if TYPE_CHECKING:
    from pinfold.audit.audit import AuditReport
    from pinfold.audit.record import AuditRecord
    from pinfold.audit.snapshot import KernelSnapshot
    from pinfold.core.values.cpuset import CPUSet

_LOOKS: Final = 5
"""How often the runtime is asked while its record differs: an agent lets it follow."""
_PAUSE: Final = 0.3
"""Seconds between two looks."""


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
    output: str,
    color: bool | None,
) -> None:
    """Does the kernel agree?  Compares the record of exclusive CPUs with the running kernel.

    Looks at the owners' cgroups and at every other process, thread and interrupt. Changes
    nothing, and needs no agent; each finding names the command that mends it.

    Exit status: 0 the kernel agrees (info does not count), 1 findings, 2 the input is at fault.
    """
    from pinfold.audit.audit import audit_document  # noqa: PLC0415 - after --help
    from pinfold.ports.errors import PortError  # noqa: PLC0415

    given = tuple(_parse_owner(text) for text in owners)
    place = Place(root, state_path, kubelet=kubelet, only_given=bool(given))
    with input_errors(PortError):
        report = _look(place, given, socket, runtime_endpoint)
    if output == "json":
        print_json(audit_document(report, strict=strict))
    else:
        from pinfold.render.audit_text import render_audit  # noqa: PLC0415 - only for text

        print_text(render_audit(report, style(color), strict=strict))
    raise SystemExit(0 if report.is_clean(strict=strict) else 1)


def _look(
    place: Place, given: tuple[tuple[CPUSet, str], ...], socket: str, endpoint: str
) -> AuditReport:
    """Compare; where only the runtime is behind, which an agent mends, look again."""
    from pinfold.audit.audit import audit as compare  # noqa: PLC0415 - after --help
    from pinfold.audit.findings import RUNTIME_RECORD  # noqa: PLC0415

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
    from pinfold.adapters.procfs.files import KernelFiles  # noqa: PLC0415 - after --help
    from pinfold.adapters.procfs.owners import locate_given  # noqa: PLC0415
    from pinfold.adapters.procfs.tasks import read_namespaces  # noqa: PLC0415
    from pinfold.audit.containers import namespace_pids  # noqa: PLC0415

    agent = ask_agent(socket) if place.wants_agent else None

    def told(snapshot: KernelSnapshot) -> Told:
        if not endpoint and not place.wants_runtime(snapshot, agent):
            return Told()
        return ask_runtime(endpoint or (agent.endpoint if agent is not None else ""), place.root)

    snapshot, record = read_record(place, agent, told)
    found = [locate_given(snapshot, where, cpus) for cpus, where in given]
    record = replace(record, owners=(*record.owners, *found))
    if pids := namespace_pids(snapshot, record):
        namespaces = read_namespaces(KernelFiles(place.root), pids)
        snapshot = replace(snapshot, namespaces=namespaces)
    return snapshot, record


def _parse_owner(text: str) -> tuple[CPUSet, str]:
    from pinfold.core.values.cpuset import CPUSet, CPUSetError  # noqa: PLC0415 - after --help

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
