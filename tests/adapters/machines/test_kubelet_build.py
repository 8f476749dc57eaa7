"""The version of a running kubelet: from Go's build info in its executable, or from nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines.capture import capture_entries
from pinfold.adapters.machines.kubelet_build import (
    running_kubelet,
    version_of_build,
    version_of_executable,
)
from pinfold.adapters.machines.node_facts import SIDE_FILE, read_kubelet_version
from pinfold.cli import main
from tests.scenes.sysfs_trees import memory_tree, plain

PATH = "path\tk8s.io/kubernetes/cmd/kubelet\n"
LINKED = (
    "build\t-ldflags=\" -X 'k8s.io/client-go/pkg/version.gitVersion=v1.36.2' -X "
    "'k8s.io/component-base/version.gitVersion=v1.36.2' -s -w\"\n"
)


def length(number: int) -> bytes:
    """A number as Go writes it before a text."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def executable(text: str, *, flags: int = 2, before: int = 4096) -> bytes:
    """As the Go linker lays it out: a header at a multiple of 16, and two texts."""
    info = b"<" * 16 + text.encode() + b">" * 16
    header = (b"\xff Go buildinf:" + bytes([8, flags])).ljust(32, b"\0")
    decoy = b"not here: \xff Go buildinf:".ljust(before - 16, b"\1") + bytes(16)
    texts = length(8) + b"go1.26.1" + length(len(info)) + info
    return b"\x7fELF" + decoy[4:] + header + texts + bytes(64)


def machine(proc: Path, *processes: tuple[str, bytes]) -> Path:
    for pid, (name, content) in enumerate(processes, start=10):
        folder = proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "exe").write_bytes(content)
    (proc / "self").mkdir(parents=True)
    return proc


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (PATH + LINKED, "v1.36.2"),
        (PATH + LINKED.replace("1.36.2", "1.35.6+k3s1"), "v1.35.6+k3s1"),
        (PATH + LINKED.replace("1.36.2", "1.37.0-alpha.1.22+abcdef"), "v1.37.0-alpha.1.22+abcdef"),
        (PATH + "mod\tk8s.io/kubernetes\tv1.36.2\n", "v1.36.2"),
        (PATH + "mod\tk8s.io/kubernetes\tv1.36.2\th1:xyz=\n", "v1.36.2"),
        (PATH + "mod\tk8s.io/kubernetes\tv1.35.6\n" + LINKED, "v1.36.2"),
        # Nobody can tell, or not surely.
        (PATH, ""),
        (PATH + "mod\tk8s.io/kubernetes\t(devel)\n", ""),
        (PATH + "mod\tk8s.io/kubernetes\tv1.36.3-0.20260401101112-0123456789ab\n", ""),
        (PATH + "mod\tk8s.io/kubernetes\tv0.0.0-20260401101112-0123456789ab\n", ""),
        ("path\tk8s.io/kubernetes/cmd/kubectl\nmod\tk8s.io/kubernetes\tv1.36.2\n", ""),
        (PATH + LINKED.replace("gitVersion=v1.36.2'", "gitVersion=v1.35.1'", 1), ""),
        (PATH + LINKED.replace("v1.36.2", "none"), ""),
        (PATH + LINKED.replace("v1.36.2", "v1.36.2" + "+" + "x" * 61), ""),
    ],
)
def test_the_version_of_a_build(tmp_path: Path, text: str, version: str) -> None:
    assert version_of_build(text) == version
    file = tmp_path / "kubelet"
    file.write_bytes(executable(text))
    assert version_of_executable(file) == version


@given(st.integers(1, 700), st.binary(max_size=40))
def test_a_file_that_is_cut_or_broken_tells_nothing_wrong(
    tmp_path_factory: pytest.TempPathFactory, kept: int, added: bytes
) -> None:
    whole = executable(PATH + LINKED, before=32)
    file = tmp_path_factory.getbasetemp() / "broken"
    file.write_bytes(whole[:kept] + added)
    assert version_of_executable(file) in {"", "v1.36.2"}
    file.write_bytes(executable(PATH + LINKED, flags=0))
    assert version_of_executable(file) == "", "of a Go before 1.18"
    file.write_bytes(added or b"\0")
    assert version_of_executable(file) == ""


def test_the_kubelet_that_runs(tmp_path: Path) -> None:
    ours, other = executable(PATH + LINKED), executable(PATH + LINKED.replace("36.2", "35.6"))
    assert running_kubelet(tmp_path / "nothing") == ""
    assert running_kubelet(machine(tmp_path / "none", ("kubectl", ours))) == ""
    assert running_kubelet(machine(tmp_path / "one", ("bash", b""), ("kubelet", ours))) == "v1.36.2"
    twice = machine(tmp_path / "twice", ("kubelet", ours), ("kubelet", ours), ("kubelet", b""))
    assert running_kubelet(twice) == "v1.36.2"
    several = machine(tmp_path / "several", ("kubelet", ours), ("kubelet", other))
    assert running_kubelet(several) == ""
    silent = machine(tmp_path / "silent", ("kubelet", ours), ("kubelet", b"#!/bin/sh\n"))
    assert running_kubelet(silent) == "", "one of them may be another"


@pytest.mark.parametrize(
    ("line", "told", "captured"),
    [
        ("kubelet: v1.35.6\n", "v1.35.6", True),
        ("kubelet: v1.36\n", "v1.36", True),
        ("kubelet: v1.36.2\nkubelet: v1.35.6+vendor.2\n", "v1.35.6+vendor.2", True),
        # Written by hand: whoever plans has to say what he makes of it, nobody writes it on.
        ("kubelet: soon\n", "soon", False),
        ("kubelet: 1.35.6-eks\n", "1.35.6-eks", False),
        (f"kubelet: {'9' * 200}\n", "9" * 80, False),
        ("irqbalance: absent\n", "", False),
    ],
)
def test_a_capture_tells_it_again(line: str, told: str, *, captured: bool) -> None:
    tree = memory_tree(plain(4) | {SIDE_FILE: f"node-facts: 1\n{line}"})
    assert read_kubelet_version(tree) == told
    texts = {entry.path: entry.text or "" for entry in capture_entries(tree)[1]}
    again = memory_tree(plain(4) | {SIDE_FILE: texts[SIDE_FILE]})
    assert read_kubelet_version(again) == (told if captured else "")
    assert read_kubelet_version(None) == ""


@pytest.mark.parametrize(("said", "shown"), [("v1.34.3", "1.34.3"), (" 1.35 ", "1.35.6")])
def test_a_capture_with_a_version_is_planned_as_that_kubelet(
    tmp_path: Path, said: str, shown: str
) -> None:
    root, pod = tmp_path / "root", tmp_path / "pod.yaml"
    for path, text in plain(4).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    pod.write_text("kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n")
    archive = str(tmp_path / "node.tar.xz")
    capture = ["capture", "-o", archive, "--root", str(root)]
    done = CliRunner().invoke(main, [*capture, "--kubelet-version", said])
    assert (done.exit_code, done.exception) == (0, None), done.output
    planned = CliRunner().invoke(main, ["plan", "--machine", archive, "-o", "json", str(pod)])
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.output)["kubelet"]["source"] == "capture"
    assert json.loads(planned.output)["kubelet"]["version"] == shown
    refused = CliRunner().invoke(main, [*capture, "--kubelet-version", "soon", "--force"])
    assert refused.exit_code == 2
    assert "--kubelet-version: 'soon' is no version of a kubelet" in refused.output
