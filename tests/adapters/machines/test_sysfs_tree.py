"""Directories and archives as trees: nothing outside is read, nothing is believed."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.adapters.machines import archive as archive_module
from pinfold.adapters.machines.discovery import open_tree, read_machine, read_tree
from pinfold.adapters.machines.tree import LiveTree
from pinfold.core.machine.machine import MachineError
from tests.scenes.sysfs_trees import CPU, SAMPLES, memory_tree, plain

SAMPLE = SAMPLES / "16em64t-4s2c2t-offlines.tar.xz"


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def packed(path: Path, *extra: tarfile.TarInfo, files: dict[str, str] | None = None) -> Path:
    """A capture of one CPU, and more members behind it."""
    with tarfile.open(path, "w") as archive:
        for name, text in (plain(1) if files is None else files).items():
            info = member(f"node/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
        for info in extra:
            archive.addfile(info, io.BytesIO(b"x" * info.size))
    return path


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    "name", ["../evil", "node/../../evil", "/etc/passwd", "node/sys/../../../x"]
)
def test_names_that_point_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MachineError, match="points out of the archive"):
        read_machine(packed(tmp_path / "a.tar", member(name)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../../../../../../etc/hostname", "../../../../../outside", "loop"]
)
def test_links_stay_inside_the_tree(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("7\n", encoding="utf-8")
    path = f"{CPU}/isolated"
    link = member(f"node/{path}", kind=tarfile.SYMTYPE, link=target)
    archived = open_tree(packed(tmp_path / "a.tar", link))
    root = write(tmp_path / "node", plain(1))
    (root / path).symlink_to(target)
    for tree in (archived, open_tree(root)):
        assert tree.read(path) is None
        assert not tree.is_file(path)


def test_absolute_links_start_at_the_root_of_the_tree(tmp_path: Path) -> None:
    root = write(tmp_path / "node", plain(2) | {"etc/cpus": "1\n"})
    (root / CPU / "isolated").symlink_to("/etc/cpus")
    (root / "sys/class").symlink_to("devices/system")
    tree = open_tree(root)
    assert tree.read(f"{CPU}/isolated") == "1\n"
    assert tree.read("sys/class/cpu/isolated") == "1\n"
    assert tree.real_path("sys/class/cpu/cpu0") == f"{CPU}/cpu0"
    assert [str(cpu.cpu) for cpu in read_tree(tree).cpus if cpu.isolated] == ["1"]


def test_chains_of_links_end() -> None:
    links = {f"l{n}": f"l{n + 1}/l{n + 1}" for n in range(60)}
    links |= {"a": "b", "b": "a", "self": "self/self"}
    tree = memory_tree({"l60/l60/x": "1"}, links)
    for path in ("l0", "a", "self", "a/b/c"):
        assert tree.read(path) is None
        assert tree.names(path) == ()


def test_a_pipe_in_a_directory_is_not_waited_for(tmp_path: Path) -> None:
    root = write(tmp_path / "node", plain(1))
    os.mkfifo(root / CPU / "isolated")
    assert not read_machine(root).isolated


def test_other_members_are_left_out(tmp_path: Path) -> None:
    path = packed(
        tmp_path / "a.tar",
        member(f"node/{CPU}/isolated", kind=tarfile.FIFOTYPE),
        member(f"node/{CPU}/cpu1/online", kind=tarfile.LNKTYPE, link=f"node/{CPU}/online"),
        member("node/dev/null", kind=tarfile.CHRTYPE),
    )
    machine = read_machine(path)
    assert not machine.isolated
    assert len(machine.cpus) == 1


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("MAX_MEMBERS", 3),
        ("MAX_TOTAL_BYTES", 5),
        ("MAX_FILE_BYTES", 3),
        ("MAX_ARCHIVE_BYTES", 5),
        ("MAX_UNPACKED_BYTES", 3000),
    ],
)
def test_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    path = packed(tmp_path / "a.tar")
    assert len(read_machine(path).cpus) == 1
    monkeypatch.setattr(archive_module, limit, value)
    with pytest.raises(MachineError, match=r"more than|has .* bytes|larger than"):
        read_machine(path)


def test_a_header_that_claims_much_is_not_believed(tmp_path: Path) -> None:
    info = member("node/huge")
    info.size = 1 << 40
    path = tmp_path / "a.tar"
    path.write_bytes(packed(tmp_path / "b.tar").read_bytes()[:-10240] + info.tobuf() + bytes(10240))
    with pytest.raises(MachineError, match="1099511627776 bytes"):
        read_machine(path)


def test_deep_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="too deep"):
        read_machine(packed(tmp_path / "a.tar", member("a/" * 100)))


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress, bytes], ids=["xz", "gz", "tar"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.95])
def test_truncated_archives(tmp_path: Path, pack: Callable[[bytes], bytes], part: float) -> None:
    data = pack(packed(tmp_path / "whole.tar", files=plain(24)).read_bytes().rstrip(b"\0"))
    path = tmp_path / "cut.tar"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(MachineError, match=r"cut\.tar: .*(truncated|damaged|no tar archive)"):
        read_machine(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty|no tar archive"),
        (b"hello", "no tar archive|truncated"),
        (b"\x1f\x8bnonsense", "damaged|truncated"),
        (b"\xfd7zXZ\x00nonsense", "damaged|truncated"),
        (b"BZhnonsense", "damaged|truncated"),
        (bytes(10240), "empty"),
    ],
)
def test_files_that_are_no_archive(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "node.tar.xz"
    path.write_bytes(content)
    with pytest.raises(MachineError, match=message) as caught:
        read_machine(path)
    assert str(path) in str(caught.value)


def test_directories_that_are_no_capture(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no sys/devices/system/cpu"):
        read_machine(tmp_path)
    write(tmp_path / "one", plain(1))
    assert read_machine(tmp_path).name == "one"
    write(tmp_path / "two", plain(1))
    with pytest.raises(MachineError, match=r"holds 2 captures \(one, two\)"):
        read_machine(tmp_path)
    with pytest.raises(MachineError, match="No such file"):
        read_machine(tmp_path / "three")
    with pytest.raises(MachineError, match="neither"):
        read_machine(Path("/dev/null"))


def test_the_file_system_root_is_this_machine() -> None:
    assert isinstance(open_tree(Path("/")), LiveTree)


FILES = plain(3) | {
    f"{CPU}/cpu0/cache/index0/level": "3\n",
    f"{CPU}/cpu0/cache/index0/size": "1K\n",
    f"{CPU}/cpu0/cache/index0/shared_cpu_map": "7\n",
    f"{CPU}/cpu1/cpufreq/cpuinfo_max_freq": "1\n",
    f"{CPU}/cpu1/cpu_capacity": "1\n",
    f"{CPU}/isolated": "1\n",
    "sys/devices/cpu_atom/cpus": "1\n",
    "sys/devices/system/node/node0/distance": "10\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1 kB\n",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "1\n",
    "sys/bus/pci/devices/0000:00:00.0/class": "0x010000\n",
    "proc/cpuinfo": "processor : 0\nphysical id : 0\n",
    "proc/meminfo": "MemTotal: 1 kB\nHugepagesize: 1 kB\nHugePages_Total: 1\n",
    "proc/mounts": "none /c cgroup2 rw\n",
    "proc/self/cgroup": "0::/\n",
    "c/cgroup.controllers": "cpuset\n",
    "c/cpuset.cpus.effective": "0\n",
    "proc/cmdline": "isolcpus=1\n",
}
CONTENTS = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20),
    st.sampled_from(
        ["", "\n", "-1", "0", "65535", "99999999999999999999", "0-3", "0-65535", "ffff,"]
    ),
    st.text("0123456789abcdef,-:/x KMG\n\0", max_size=12),
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.none() | CONTENTS, max_size=6))
def test_garbage_in_files_is_a_machine_error_or_a_machine(
    changes: dict[str, bytes | str | None],
) -> None:
    files: dict[str, str | bytes] = dict(FILES)
    for path, content in changes.items():
        if content is None:
            del files[path]
        else:
            files[path] = content
    try:
        machine = read_tree(memory_tree(files))
    except MachineError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are right
    else:
        assert machine.online
        assert all(cpu.core is not None for cpu in machine.cpus if cpu.online)


@settings(max_examples=60)
@given(st.binary(max_size=30), st.integers(0, 3600), st.booleans())
def test_damaged_archives_are_a_machine_error_or_a_machine(
    noise: bytes, at: int, insert: bool
) -> None:
    data = SAMPLE.read_bytes()
    damaged = data[:at] + noise + data[at + (0 if insert else len(noise)) :]
    try:
        archive_module.read_members(Path("x.tar.xz"), io.BytesIO(damaged))
    except MachineError as error:
        assert str(error).startswith("x.tar.xz: ")  # noqa: PT017 - both outcomes are right
