"""Captures: the identical machine, nothing private, the same bytes, never half a file."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines import node_facts
from pinfold.adapters.machines.capture import (
    DIRECTORIES,
    FILES,
    LINKS,
    capture_entries,
    reduce_command_line,
    reduce_cpuinfo,
    reduce_meminfo,
)
from pinfold.adapters.machines.capture_file import SUFFIXES, pack, write_new
from pinfold.adapters.machines.discovery import open_tree, read_machine
from pinfold.adapters.machines.proc import CpuInfo
from pinfold.cli.commands.capture import capture
from pinfold.core.machine.machine import MachineError
from tests.scenes.sysfs_trees import CPU, NODE, SAMPLES, capture_name, captures, memory_tree, plain

ALLOWED = re.compile(
    "|".join(
        (
            *FILES,
            *DIRECTORIES,
            *LINKS,
            *node_facts.FILES,
            node_facts.SIDE_FILE,
            node_facts.RELEASE,
            node_facts.CPUSETS_V1,
            node_facts.CONTROLLERS,
            r"proc/swaps",
            rf"{NODE}/node\d+/(?:meminfo|cpu\d+)",
            rf"{NODE}/node\d+/access[01]/initiators/node\d+",
            r"sys/bus/pci/devices/[0-9a-f:.]+/(?:class|numa_node|local_cpus|local_cpulist)",
            r"proc/(?:cpuinfo|meminfo|cmdline|hwloc-nofile-info|mounts|self/cpuset)",
            r"dev/cpuset/cpus",
        )
    )
)

HOST_NAME = "worker-17.prod.example"
SERIAL = "SN-4711-0815"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(capture, [str(argument) for argument in arguments])


# Of the captures beside the repository, those that have what the samples have not.
ODD = ("20s390", "2pa-", "32em64t", "64amd64-4p2n", "8ia64", "fakeheterocpunuma", "16amd64-8n2c-")


@pytest.mark.parametrize(
    "path",
    [path for path in captures() if path.parent == SAMPLES or path.name.startswith(ODD)],
    ids=capture_name,
)
def test_a_capture_is_the_identical_machine(path: Path, tmp_path: Path) -> None:
    output = tmp_path / path.name
    result = run("-o", output, "--root", path)
    assert result.exit_code == 0, result.output
    assert read_machine(output) == read_machine(path)
    with tarfile.open(output) as archive:
        members = archive.getmembers()
    top = f"{capture_name(path)}/"
    for member in members:
        assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
        assert (member.uname, member.gname) == ("", "")
        if member.isfile() or member.issym():
            assert ALLOWED.fullmatch(member.name.removeprefix(top)), member.name
    assert [m.name for m in members] == sorted({m.name for m in members}, key=_as_written)


def _as_written(name: str) -> list[str]:
    return name.split("/")


def private_machine() -> dict[str, str]:
    """A machine with something private in every file that has room for it."""
    files = plain(4, online="0-2")
    return files | {
        "proc/cmdline": f"root=/dev/sda host={HOST_NAME} isolcpus=1 hugepages=4 key={SERIAL}\n",
        "proc/cpuinfo": (
            "processor\t: 0\nvendor_id\t: X\nmodel name\t: CPU 9\nphysical id\t: 0\n"
            f"flags\t\t: lm\nSerial\t\t: {SERIAL}\n\n"
            f"processor\t: 1\nphysical id\t: 0\nmachine\t: {HOST_NAME}\n\n"
        ),
        "proc/meminfo": f"MemTotal: 1024 kB\nOwner: {HOST_NAME}\n",
        "proc/mounts": f"{HOST_NAME}:/home /home nfs rw 0 0\nnone /dev/cpuset cpuset rw 0 0\n",
        "proc/self/cpuset": f"/{HOST_NAME}\n",
        f"dev/cpuset/{HOST_NAME}/cpus": "0-1\n",
        "proc/hwloc-nofile-info": f"Architecture: x86_64\nHostName: {HOST_NAME}\n",
        "proc/swaps": f"Filename Type\n/home/{HOST_NAME}/swap file\n/dev/{SERIAL} partition\n",
        "proc/sys/kernel/watchdog_cpumask": f"{HOST_NAME}\n",
        f"proc/sys/kernel/{SERIAL}": "1\n",
        "proc/1/comm": f"{SERIAL}\n",
        "proc/sys/kernel/osrelease": f"6.18.3-{HOST_NAME}\n",
        f"sys/fs/cgroup/cpuset/{SERIAL}/": "",
        "proc/sys/kernel/hostname": f"{HOST_NAME}\n",
        "sys/class/dmi/id/product_serial": f"{SERIAL}\n",
        f"{CPU}/cpu0/topology/{SERIAL}": "1\n",
        f"{CPU}/cpu0/cache/index0/{SERIAL}": "1\n",
        f"{NODE}/node0/meminfo": f"Node 0 MemTotal:  512 kB\n{HOST_NAME}\n",
        f"{NODE}/node0/{SERIAL}": "1\n",
        "sys/bus/pci/devices/0000:00:01.0/class": "0x020000\n",
        "sys/bus/pci/devices/0000:00:01.0/serial": f"{SERIAL}\n",
        "sys/bus/pci/devices/0000:00:02.0/class": "0x060000\n",
        "sys/bus/pci/devices/0000:00:02.0/local_cpus": "1\n",
    }


def test_nothing_private_is_captured() -> None:
    machine, entries = capture_entries(memory_tree(private_machine()))
    held = "\n".join(f"{e.path} {e.text} {e.link}" for e in entries)
    assert HOST_NAME not in held
    assert SERIAL not in held
    assert "0000:00:02.0" not in held
    assert "isolcpus=1 hugepages=4\n" in held
    assert "root=" not in held
    assert all(ALLOWED.fullmatch(entry.path) for entry in entries)
    assert len(machine.pci) == 1


def test_what_the_kernel_was_booted_to_isolate_is_captured() -> None:
    said = "isolcpus=1 nohz_full=1-2 rcu_nocbs=2"
    files = plain(4) | {
        "proc/cmdline": f"host={HOST_NAME} {said}\n",
        f"{CPU}/isolated": "1\n",
        f"{CPU}/nohz_full": "1-2\n",
    }
    machine, entries = capture_entries(memory_tree(files))
    assert (str(machine.isolated), str(machine.nohz_full), str(machine.rcu_nocbs)) == (
        "1",
        "1-2",
        "2",
    )
    texts = {entry.path: entry.text for entry in entries}
    assert texts["proc/cmdline"] == f"{said}\n"
    assert texts[f"{CPU}/nohz_full"] == "1-2\n"
    # A kernel without it says so in a word that is no list.
    _, entries = capture_entries(memory_tree(files | {f"{CPU}/nohz_full": "  (null)\n"}))
    assert f"{CPU}/nohz_full" not in {entry.path for entry in entries}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_packing_reads_back(suffix: str, tmp_path: Path) -> None:
    machine, entries = capture_entries(memory_tree(private_machine()))
    path = tmp_path / f"test{suffix}"
    write_new(path, pack(entries, "test", suffix), force=False)
    again = read_machine(path)
    assert again == machine
    assert str(again.allowed) == "0-1"
    assert pack(entries, "test", suffix) == path.read_bytes()


def test_values_that_are_no_values_are_left_out() -> None:
    files = plain(1) | {f"{CPU}/cpu0/cpu_capacity": f"5 {HOST_NAME}@x\n"}
    with pytest.raises(MachineError):
        capture_entries(memory_tree(files))
    files = plain(1) | {f"{CPU}/cpu0/cache/index0/type": "who@example\n"}
    _, entries = capture_entries(memory_tree(files))
    assert "example" not in "".join(entry.text or "" for entry in entries)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    source, output = captures()[0], tmp_path / "node.tar.xz"
    output.write_text("mine", encoding="utf-8")
    refused = run("-o", output, "--root", source)
    assert refused.exit_code == 1
    assert "exists" in refused.output
    assert "--force" in refused.output
    assert output.read_text(encoding="utf-8") == "mine"
    assert run("-o", output, "--root", source, "--force").exit_code == 0
    assert read_machine(output).name == "node"
    assert [path.name for path in tmp_path.iterdir()] == ["node.tar.xz"]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "node.tar"
    output.symlink_to(tmp_path / "nowhere")
    with pytest.raises(MachineError, match="exists"):
        write_new(output, b"new", force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["node.tar"]


@pytest.mark.parametrize(
    ("output", "root", "code", "message"),
    [
        ("node.zip", "", 2, "a capture is named"),
        (".tar.xz", "", 2, "a capture is named"),
        ("missing/node.tar", "SAMPLE", 2, "cannot be written"),
        ("node.tar", "nowhere", 2, "No such file"),
        ("node.tar", "", 2, "no sys/devices/system/cpu"),
    ],
)
def test_errors(tmp_path: Path, output: str, root: str, code: int, message: str) -> None:
    source = captures()[0] if root == "SAMPLE" else tmp_path / root
    result = run("-o", tmp_path / output, "--root", source)
    assert result.exit_code == code
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


def test_this_machine(tmp_path: Path) -> None:
    if not Path(f"/{CPU}/online").exists():
        pytest.skip("no sysfs here")
    output = tmp_path / "here.tar.xz"
    assert run("-o", output).exit_code == 0
    live, again = read_machine(Path("/")), read_machine(output)
    assert again.cpus == live.cpus
    assert again.kubelet_facts == live.kubelet_facts
    assert isinstance(open_tree(output).read("proc/cpuinfo"), str)


@given(st.text("isolcpunhzfm=,-:0123 \t/@", max_size=40))
def test_command_line_keeps_whole_words_only(text: str) -> None:
    kept = reduce_command_line(text).split()
    assert all(word in text.split() for word in kept)
    assert all("/" not in word and "@" not in word for word in kept)
    assert reduce_command_line(" ".join(kept)).split() == kept


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["processor", "physical id", "model name", "vendor_id", "Serial", "x"]),
            st.text("0123456789abc ", max_size=6),
        ),
        max_size=12,
    )
)
def test_reduced_cpuinfo_says_the_same(lines: list[tuple[str, str]]) -> None:
    text = "".join(f"{name}\t: {value}\n" for name, value in lines)
    whole, reduced = CpuInfo(text), CpuInfo(reduce_cpuinfo(text))
    assert (whole.model, whole.physical_ids) == (reduced.model, reduced.physical_ids)
    assert "Serial" not in reduce_cpuinfo(text)


def test_meminfo_keeps_its_numbers() -> None:
    text = "MemTotal:    5 kB\nMemFree: 1 kB\nHugePages_Free:    2\nHugepagesize:  2048 kB\n"
    assert reduce_meminfo(text) == (
        "MemTotal:    5 kB\nHugePages_Free:    2\nHugepagesize:  2048 kB\n"
    )
