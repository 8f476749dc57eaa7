"""``pinfold profile``: verdicts, exit statuses, and what an operator reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from pinfold.config.node_profiles import BUILT_IN, load_profile, profile_text
from tests.roots import ROOT

CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: 0-1
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, arguments)])


def tree(tmp_path: Path, **changed: str) -> Path:
    """A machine of four CPUs that fits the profile standard, but for what was changed."""
    files = {
        "sys/devices/system/cpu/online": "0-3\n",
        "sys/devices/system/cpu/present": "0-3\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "proc/swaps": "Filename\n",
        **{f"sys/devices/system/cpu/cpu{cpu}/topology/core_id": f"{cpu}\n" for cpu in range(4)},
        **{
            f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id": "0\n"
            for cpu in range(4)
        },
    } | {path.replace("__", "/"): text for path, text in changed.items()}
    for path, text in files.items():
        place = tmp_path / "node" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="ascii")
    (tmp_path / "kubelet.yaml").write_text(CONFIG, encoding="ascii")
    return tmp_path / "node"


def checked(tmp_path: Path, *more: str, **changed: str) -> Result:
    where = tree(tmp_path, **changed)
    return run("check", "--machine", where, "--kubelet-config", tmp_path / "kubelet.yaml", *more)


def test_a_machine_that_fits(tmp_path: Path) -> None:
    result = checked(tmp_path)
    assert result.exit_code == 0, result.output
    assert "✓ node fits profile standard" in result.output
    assert "✓ fits  cpu-manager, reserved-cpus, swap, transparent-hugepages" in result.output


def test_what_differs_is_told_with_what_mends_it(tmp_path: Path) -> None:
    result = checked(tmp_path, sys__kernel__mm__transparent_hugepage__enabled="[always] never\n")
    assert result.exit_code == 1
    assert "✗ node does not fit profile standard: 1 differ of 4" in result.output
    assert "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" in result.output
    assert "transhuge.rst" in result.output


def test_what_cannot_be_read_does_not_fit(tmp_path: Path) -> None:
    where = tree(tmp_path)
    (where / "proc/swaps").unlink()
    result = run("check", "--machine", where, "--kubelet-config", tmp_path / "kubelet.yaml")
    assert result.exit_code == 1
    assert "1 unknown of 4" in result.output


def test_infos_do_not_count_unless_it_is_strict(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    row = "  - {name: x, what: w, read: parameter x, expect: {is: [1]}, severity: info"
    own.write_text(
        "kind: NodeProfile\nversion: 1\nname: own\nabout: o\nincludes: standard\nrows:\n"
        f"{row}, why: because, source: s, change: c}}\n"
    )
    assert checked(tmp_path, "--profile", str(own)).exit_code == 0
    assert checked(tmp_path, "--profile", str(own), "--strict").exit_code == 1


def test_the_document(tmp_path: Path) -> None:
    result = checked(tmp_path, "--profile", "tuned", "-o", "json")
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert (document["verdict"], document["exclusive"]) == ("differs", "2-3")
    states = {row["name"]: row["state"] for row in document["rows"]}
    assert list(states) == [row.name for row in load_profile("tuned").rows]
    assert states["governor"] == "unknown"
    assert states["full-cores"] == "differs"
    assert sum(document["counts"].values()) == len(states)


def test_which_cpus_are_exclusive_may_be_said(tmp_path: Path) -> None:
    where = tree(tmp_path)
    result = run("check", "--machine", where, "--exclusive", "3", "-o", "json")
    assert json.loads(result.output)["exclusive"] == "3"
    for wrong in ("9", "x", ""):
        assert run("check", "--machine", where, "--exclusive", wrong).exit_code == 2


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (CONFIG.replace("static", "none"), "no CPU is given out exclusively"),
        (CONFIG.replace("0-1", "0-9"), "the kubelet would not start"),
        (CONFIG.replace("0-1", "0-3"), "it leaves no CPU to be owned"),
    ],
)
def test_why_they_are_not_known(tmp_path: Path, config: str, note: str) -> None:
    where = tree(tmp_path)
    file = tmp_path / "kubelet.yaml"
    file.write_text(config)
    result = run("check", "--machine", where, "--kubelet-config", file, "-o", "json")
    document = json.loads(result.output)
    assert document["exclusive"] is None
    assert any(note in one for one in document["notes"])
    assert result.exit_code == 1


@pytest.mark.parametrize(
    "wrong",
    [("--profile", "fast"), ("--machine", "no-such"), ("--kubelet-config", "no-such.yaml")],
)
def test_bad_input_is_one_line(wrong: tuple[str, str]) -> None:
    result = run("check", *wrong)
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1


def test_of_a_short_form_nothing_is_known() -> None:
    config = ROOT / "examples/kubelet.yaml"
    result = run("check", "--machine", "1s4c2t", "--kubelet-config", config, "-o", "json")
    states = {row["name"]: row["state"] for row in json.loads(result.output)["rows"]}
    assert states == {
        "cpu-manager": "fits",
        "reserved-cpus": "fits",
        "swap": "unknown",
        "transparent-hugepages": "unknown",
    }
    assert result.exit_code == 1


def test_this_machine_is_compared(tmp_path: Path) -> None:
    (tmp_path / "kubelet.yaml").write_text(CONFIG.replace("0-1", "'0'"), encoding="ascii")
    arguments = ("--profile", "hyper-tuned", "--kubelet-config", tmp_path / "kubelet.yaml")
    result = run("check", *arguments, "-o", "json")
    assert result.exit_code in {0, 1}, result.output
    states = {row["name"]: row["state"] for row in json.loads(result.output)["rows"]}
    assert states["cpu-manager"] == "fits"


def test_profiles_are_listed_and_shown() -> None:
    listed = run("show")
    assert [line.split()[0] for line in listed.output.splitlines()] == list(BUILT_IN)
    assert run("show", "tuned").output == profile_text("tuned")
    assert run("show", "fast").exit_code == 2
