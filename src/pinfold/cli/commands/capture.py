"""``pinfold capture``: write down this machine for ``--machine`` elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from pinfold.adapters.machines.capture import capture_entries
from pinfold.adapters.machines.capture_file import (
    FileTakenError,
    capture_suffix,
    pack,
    refuse_existing,
    write_new,
)
from pinfold.adapters.machines.discovery import open_tree
from pinfold.cli.forms import OutFile
from pinfold.cli.output import Refused, input_errors
from pinfold.cli.progress_line import progress_line
from pinfold.core.kubelet.versions import KubeletVersionError, named_version
from pinfold.core.machine.machine import MachineError
from pinfold.core.values.cpuset import CPUSet


@click.command(name="capture")
@click.option(
    "-o",
    "--output",
    type=OutFile(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The archive: .tar.xz, .tar.gz, .tar.bz2 or .tar.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Where sys/ and proc/ are; a directory or another capture.",
)
@click.option(
    "--kubelet-version",
    metavar="V",
    help="The version of the kubelet, such as v1.36.2. Without it: that of the kubelet that runs, "
    "if its executable tells and can be read (as root).",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def capture(output: Path, root: Path, kubelet_version: str | None, *, force: bool) -> None:
    """Write what --machine needs of this machine to a file.

    It has the files about CPUs, caches, NUMA nodes and huge pages; where storage, network, display
    and accelerator functions are, with the names of their interfaces and disks; the processor's
    model; the kernel's parameters about CPUs and huge pages; the settings that
    `pinfold profile check` compares; and the kubelet's version.

    Nothing private is in it: no host name, hardware address, serial number or mount, no other
    parameter, and no program but irqbalance.
    """
    try:
        suffix = capture_suffix(output)
    except MachineError as error:
        raise click.UsageError(str(error)) from None
    version = ""
    if kubelet_version is not None:
        with input_errors(KubeletVersionError, prefix="--kubelet-version: "):
            named_version(kubelet_version)
        version = f"v{kubelet_version.strip().removeprefix('v')}"
    with input_errors(MachineError):
        try:
            if not force:
                refuse_existing(output)
            name = output.name.removesuffix(suffix)
            with progress_line("capturing"):
                machine, entries = capture_entries(open_tree(root), version)
                data = pack(entries, name, suffix)
            write_new(output, data, force=force)
        except FileTakenError as error:
            raise Refused(str(error)) from None
    files = sum(entry.text is not None for entry in entries)
    click.echo(
        f"{output}: online CPUs {machine.online}, "
        f"NUMA nodes {CPUSet(node.id for node in machine.numa_nodes)}, "
        f"{files} files, {len(data)} bytes; show it with: pinfold topology --machine {output}"
    )
