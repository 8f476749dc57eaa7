"""``pinfold state versions`` and ``convert`` as a user runs them, and a disk that fails."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli.commands.state import state
from pinfold.documents.schemas import json_schema
from pinfold.state.state_file import StateFile
from tests.roots import ROOT

EXAMPLES = ROOT / "examples" / "state"
CPUS, MEMORY = "cpu_manager_state", "memory_manager_state"
GATE = "PodLevelResourceManagers"
POD = "0b6f1a52-5d0c-4a3e-9f6e-2f4f0a6b7c11"


@pytest.fixture(params=[CPUS, MEMORY])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    path.write_bytes((EXAMPLES / path.name).read_bytes())
    return path


def run(*args: object, status: int = 0) -> Result:
    result = CliRunner().invoke(state, [str(arg) for arg in args])
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def document(*args: object, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "-o", "json", status=status).stdout)
    return found


def test_every_version_is_asked(file: Path) -> None:
    told = document("versions", file)
    assert told["kind"] == file.name
    assert [(one["kubelet"], one.get("pod_level_managers")) for one in told["kubelets"]] == [
        ("1.34", None),
        ("1.35", None),
        ("1.36", False),
        ("1.36", True),
        ("1.37", False),
        ("1.37", True),
    ]
    assert [one["outcome"] for one in told["kubelets"]] == [
        *["refused"] * 3,
        "accepted",
        # The CPUs of the pod's containers are all that it has; their memory is more than that.
        "migrated" if file.name == CPUS else "refused",
        "migrated",
    ]
    assert told["kubelets"][4]["lost"] == [POD]
    assert {one["kubelet"] for one in told["kubelets"] if not one["recorded"]} == {"1.37"}


def test_the_document_is_as_published(file: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(document("versions", file), json_schema("state-versions"))
    asked = ("--kubelet-version", "1.35")
    jsonschema.validate(document("versions", file, *asked, status=1), json_schema("state-versions"))
    jsonschema.validate(document("check", file, *asked, status=1), json_schema("state-check"))


def test_one_version_answers_by_the_status(file: Path) -> None:
    run("versions", file, "--kubelet-version", "v1.35.6+k3s1", status=1)
    run("versions", file, "--kubelet-version", "1.36", status=1)
    run("versions", file, "--kubelet-version", "1.36", "--feature-gate", f"{GATE}=true")
    newest = ("--kubelet-version", "1.37", "--feature-gate", f"{GATE}=true")
    result = run("versions", file, *newest)
    assert "note: what is known of kubelet 1.37 was read from proposals" in result.stderr


def test_check_answers_in_the_words_of_the_version(tmp_path: Path) -> None:
    file = tmp_path / CPUS
    file.write_bytes((EXAMPLES / CPUS).read_bytes())
    assert run("check", file).stdout == f"{file}: fine\n"
    old = run("check", file, "--kubelet-version", "1.34", status=1).stdout
    new = run("check", file, "--kubelet-version", "1.36", status=1).stdout
    assert "checkpoint is corrupted, please drain" in old
    assert "Go struct field CPUManagerCheckpointV1.entries" in new
    assert "this one writes v2, and reads v2, v1" in new
    assert f"pinfold state convert {file} --to v2 --drop-pod-entries" in new


def test_what_is_told_to_mend_it_mends_it(file: Path) -> None:
    """The command in the answer makes a file that this kubelet takes."""
    for one in document("versions", file)["kubelets"]:
        if one["outcome"] != "refused":
            continue
        pod_level = str(one.get("pod_level_managers", False)).lower()
        asked = ["--kubelet-version", one["kubelet"]]
        asked += ["--feature-gate", f"{GATE}={pod_level}"] if "pod_level_managers" in one else []
        text = run("versions", file, *asked, status=1).stdout
        (command,) = [line for line in text.splitlines() if "  mend:" in line]
        words = command.partition(" or pinfold state ")[2].split()
        out = file.with_name("mended")
        out.unlink(missing_ok=True)
        run(*words, "-o", out)
        run("versions", out, *asked)
        run("check", out, *asked)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--kubelet-version", "1.20"), "--kubelet-version: kubelet 1.20 is older than all"),
        (("--feature-gate", f"{GATE}=true"), "--feature-gate needs --kubelet-version"),
        (("--writer-feature-gate", f"{GATE}=true"), "needs --written-by"),
        (
            ("--kubelet-version", "1.35", "--feature-gate", f"{GATE}=true"),
            "kubelet 1.35 has no such gate",
        ),
        (("--kubelet-version", "1.36", "--feature-gate", GATE), "expected KEY=VALUE"),
        (("--kubelet-version", "1.36", "--feature-gate", f"{GATE}=x"), "x"),
        (("--written-by", "1.34"), "kubelet 1.34 does not take it itself: could not restore"),
    ],
)
def test_bad_arguments(file: Path, args: tuple[str, ...], words: str) -> None:
    assert words in run("versions", file, *args, status=2).stderr


def test_up_and_down_again(file: Path) -> None:
    before = file.read_bytes()
    writer = ("--written-by", "1.37", "--writer-feature-gate", f"{GATE}=true")
    told = document("versions", file, *writer)
    assert told["written_by"] == f"1.37 with {GATE}=true"
    newest = told["kubelets"][-1]
    assert (newest["outcome"], newest["writes"]) == ("accepted", told["layout"])
    for one in told["kubelets"][:-1]:
        assert one["lost"] == [POD]
    assert file.read_bytes() == before


def test_what_the_writer_drops_is_told(file: Path) -> None:
    """A kubelet that writes the file anew without its pods has lost them, whoever reads it then."""
    newest = file.with_name("newest")
    run("convert", file, "--to", "v4" if file.name == CPUS else "v3", "-o", newest)
    if file.name != CPUS:
        # The memory manager of a kubelet without the gate does not start with it.
        assert (
            "does not take it itself"
            in run("versions", newest, "--written-by", "1.37", status=2).stderr
        )
        return
    asked = ("--written-by", "1.37", "--kubelet-version", "1.36")
    told = run("versions", newest, *asked, status=1).stdout
    assert told.count("lost by then: what pod") == 1
    found = json.loads(run("versions", newest, *asked, "-o", "json", status=1).stdout)
    assert found["lost_by_writer"] == [POD]


def test_a_conversion_to_the_same_layout_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    layout = document("show", file)["layout"]
    assert "nothing to change" in run("convert", file, "--to", layout).stdout
    assert file.read_bytes() == before
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_version_without_its_gate_points_to_the_gate(file: Path) -> None:
    flag = f"--feature-gate {GATE}=true asks for kubelet 1.36 with the gate on"
    assert flag in run("versions", file, "--kubelet-version", "1.36", status=1).stdout
    assert (
        flag
        not in run(
            "versions", file, "--kubelet-version", "1.36", "--feature-gate", f"{GATE}=true"
        ).stdout
    )


def test_a_checksum_that_does_not_fit_is_named(file: Path) -> None:
    file.write_bytes(re.sub(rb'"checksum":\d+', b'"checksum":7', file.read_bytes()))
    assert "checksum: does not fit" in run("versions", file).stdout


def test_a_refused_conversion_leaves_all_as_it_was(file: Path) -> None:
    before = file.read_bytes()
    oldest = "v2" if file.name == CPUS else "v1"
    error = run("convert", file, "--to", oldest, status=2).stderr
    assert f"this would be lost: pod {POD}: its own" in error
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    run("convert", file, "--to", oldest, "--drop-pod-entries")
    assert file.with_name(f"{file.name}.bak-1").read_bytes() == before
    run("versions", file, "--kubelet-version", "1.34")


# ------------------------------------------------------------------------------ a disk that fails


CALLS = ("open", "write", "fsync", "link", "rename", "replace", "fchmod", "fchown")


class Disk:
    """Fails the Nth call, of those that a conversion makes to write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.calls = 0
        self._at = at
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **more: object) -> object:
            self.calls += 1
            if self.calls == self._at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args, **more)

        return counted


def convert_on_a_failing_disk(file: Path, at: int) -> int:
    """Convert where call number ``at`` fails; how many calls were made."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, at)
        result = CliRunner().invoke(state, ["convert", str(file), "--to", "v3"])
        assert isinstance(result.exception, SystemExit | None), result.output
        assert "Traceback" not in result.output
    return disk.calls


def test_a_disk_that_fails_at_any_call_loses_no_file(tmp_path: Path) -> None:
    before = (EXAMPLES / CPUS).read_bytes()
    newer = CliRunner().invoke(state, ["convert", str(EXAMPLES / CPUS), "--to", "v4", "-o", "-"])
    at, calls = 0, 0
    while calls >= at:  # until one more call was to fail than there are
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        file = folder / CPUS
        file.write_bytes(newer.stdout_bytes)
        calls = convert_on_a_failing_disk(file, at)
        assert file.read_bytes() in (newer.stdout_bytes, before)
        for one in folder.iterdir():
            # What is left beside it is whole: the file, or a backup of it.
            assert StateFile.read(one.read_bytes()).checksum_fits, one
        if file.read_bytes() == before:
            assert any(one.read_bytes() == newer.stdout_bytes for one in folder.iterdir())
    assert at > 6
    assert file.read_bytes() == before
