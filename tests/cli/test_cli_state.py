"""``pinfold state`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli.commands.state import state
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.layouts import Layout
from pinfold.state.ledger import Ledger
from pinfold.state.restore import to_checkpoint
from tests.scenes.state_vectors import sample

LEDGER = Ledger(
    "static",
    CPUSet.parse("0,4-7"),
    {"pod-a": {"app": CPUSet.parse("1-2")}, "pod-b": {"init": CPUSet.parse("3")}},
)
FILE = to_checkpoint(LEDGER).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_manager_state"
    path.write_bytes(FILE)
    return path


def run(*args: object, status: int = 0) -> Result:
    result = CliRunner().invoke(state, [str(arg) for arg in args])
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert "Traceback" not in result.output
    return result


def test_show(file: Path) -> None:
    lines = run("show", file).stdout.splitlines()
    assert lines[0] == "kind:      cpu_manager_state, layout v2"
    assert "shared:    0,4-7  (5 CPUs)" in lines
    assert lines[-2:] == ["pod-a  app        1-2   2", "pod-b  init       3     1"]


def test_show_json(file: Path) -> None:
    document = json.loads(run("show", file, "-o", "json").stdout)
    assert document["version"] == 1
    assert document["kind"] == "cpu_manager_state"
    assert document["checksum"]["ok"] is True
    assert document["shared"] == {"cpus": "0,4-7", "count": 5}
    assert document["pods"][0] == {
        "uid": "pod-a",
        "containers": [{"name": "app", "cpus": "1-2", "count": 2}],
    }


@pytest.mark.parametrize("family", ["memory_state", "device_checkpoint", "checkpoint"])
def test_show_every_recorded_file(tmp_path: Path, family: str) -> None:
    path = tmp_path / "state"
    for line in sample(family).read_text().splitlines():
        case = json.loads(line)
        recorded = case.get("file") or case.get("want", {}).get("file")
        if recorded is None:
            continue
        path.write_bytes(recorded.encode())
        for command in (("show",), ("show", "-o", "json"), ("check",)):
            result = CliRunner().invoke(state, [*command, str(path)])
            assert result.exit_code in (0, 1, 2)
            assert isinstance(result.exception, SystemExit | None), result.exception
        fresh = CliRunner().invoke(state, ["check", "-o", "json", str(path)])
        assert json.loads(fresh.stdout)["version"] == 1


def test_names_from_the_file_do_not_reach_the_terminal_raw(file: Path) -> None:
    evil = Ledger("static", CPUSet([0]), {"p\x1b[31m": {"c\n": CPUSet([1])}})
    file.write_bytes(to_checkpoint(evil).encode())
    output = run("show", file).stdout
    assert "\x1b" not in output
    assert "p\\x1b[31m" in output


def test_check_says_what_the_kubelet_says(file: Path) -> None:
    assert run("check", file).stdout == f"{file}: fine\n"
    output = run("check", file, "--policy", "none", status=1).stdout
    assert 'configured policy "none" differs from state checkpoint policy "static"' in output
    assert f"mend:  pinfold state repair {file} --policy none" in output
    found = json.loads(run("check", file, "--pods", "pod-a", "-o", "json", status=1).stdout)
    assert [f["where"] for f in found["findings"]] == ["pod pod-b"]


def test_check_of_a_file_of_no_use(file: Path) -> None:
    file.write_bytes(FILE[:40])
    output = run("check", file, status=2).stdout
    assert "could not restore state from checkpoint: unexpected end of JSON input" in output
    assert run("show", file, status=2).stderr == f"Error: {file}: unexpected end of JSON input\n"
    assert run("repair", file, status=2).stderr == f"Error: {file}: unexpected end of JSON input\n"


def test_repair_keeps_what_was_there(file: Path) -> None:
    output = run("repair", file, "--drop-missing-pods", "pod-b").stdout
    assert "pod pod-b: dropped, CPUs 3 go back to the shared pool" in output
    backup = file.with_name("cpu_manager_state.bak-1")
    assert f"kept as {backup}" in output
    assert backup.read_bytes() == FILE
    assert run("check", file, "--pods", "pod-a").stdout == f"{file}: fine\n"
    assert "nothing to change" in run("repair", file).stdout
    assert not file.with_name("cpu_manager_state.bak-2").exists()


def test_dry_run_writes_nothing(file: Path) -> None:
    output = run("repair", file, "--keep-pods", "pod-a", "--dry-run").stdout
    assert "pod pod-b: dropped" in output
    assert "dry run" in output
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == FILE


def test_repair_to_another_file(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    run("repair", file, "--drop-missing-pods", "pod-b", "-o", out)
    assert file.read_bytes() == FILE
    repaired = out.read_bytes()
    run("repair", file, "--drop-missing-pods", "pod-a", "-o", out)
    assert (tmp_path / "new.bak-1").read_bytes() == repaired
    result = run("repair", file, "--drop-missing-pods", "pod-b", "-o", "-")
    assert result.stdout_bytes == repaired
    assert "pod-b: dropped" in result.stderr


@pytest.mark.parametrize(
    "content",
    [
        '{"items":[{"metadata":{"uid":"pod-a"}}]}',
        '{"items":[{"id":"x","metadata":{"name":"n","uid":"pod-a"}}]}',
        '{"containers":[{"labels":{"io.kubernetes.pod.uid":"pod-a"}}]}',
        "kind: Pod\nmetadata:\n  uid: pod-a\n---\nkind: Pod\nmetadata:\n  uid: pod-c\n",
        "pod-a\npod-c\n",
    ],
)
def test_pods_from_files(file: Path, tmp_path: Path, content: str) -> None:
    pods = tmp_path / "pods"
    pods.write_text(content)
    run("repair", file, "--pods", pods)
    assert "pod-b" not in file.read_text()
    assert "pod-a" in file.read_text()


def test_convert_with_what_crictl_prints(file: Path, tmp_path: Path) -> None:
    containers = tmp_path / "crictl-ps.json"
    labels = [("i1", "pod-a", "app"), ("i2", "pod-b", "init")]
    containers.write_text(
        json.dumps(
            {
                "containers": [
                    {
                        "id": container_id,
                        "labels": {
                            "io.kubernetes.pod.uid": uid,
                            "io.kubernetes.container.name": name,
                        },
                    }
                    for container_id, uid, name in labels
                ]
            }
        )
    )
    assert "--containers" in run("convert", file, "--to", "v1", status=2).stderr
    run("convert", file, "--to", "v1", "--containers", containers)
    assert b'"entries":{"i1":"1-2","i2":"3"}' in file.read_bytes()
    assert run("show", file).stdout.startswith("kind:      cpu_manager_state, layout v1")
    lines = tmp_path / "lines"
    lines.write_text("# pod container id\npod-a app i1\npod-b init i2\n")
    run("convert", file, "--to", "v2", "--containers", lines)
    assert file.read_bytes() == FILE
    run("convert", file, "--to", "v4")
    assert f"layout {Layout.V4.value}" in run("show", file).stdout
    assert json.loads(run("convert", file, "--to", "json").stdout)["policy"] == "static"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--reserved-cpus", "x"), "--reserved-cpus: 'x' in 'x' is no CPU id or range"),
        (("--policy-option", "nonsense"), "expected KEY=VALUE"),
        (("--policy-option", "a=b"), 'unknown CPU Manager Policy option: "a"'),
        (("--pods", "/no/such/file"), "neither a file that is there nor a list of pod uids"),
        (("--pods", "pods.json"), "'pods.json' is neither a file that is there nor a list"),
        (("--pods", "pod-a,pods.yaml"), "neither a file that is there nor a list of pod uids"),
        (("--machine", "x", "--this-machine"), "exclude each other"),
    ],
)
def test_bad_arguments(file: Path, args: tuple[str, ...], words: str) -> None:
    assert words in run("check", file, *args, status=2).stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "names no pod uid"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"metadata: [", "neither JSON nor YAML"),
        (b"[" * 100_000, "is no pod uid"),
        (b"metadata: " + b"[" * 100_000, "neither JSON nor YAML"),
        (b"apiVersion: v1\nkind: Pod\n", "'apiVersion:' is no pod uid"),
        (b"{}", "names no pod uid"),
    ],
)
def test_bad_pod_files(file: Path, tmp_path: Path, content: bytes, words: str) -> None:
    pods = tmp_path / "pods"
    pods.write_bytes(content)
    assert words in run("check", file, "--pods", pods, status=2).stderr


@pytest.mark.parametrize("option", ["--pods", "--keep-pods", "--drop-missing-pods"])
def test_a_file_that_is_not_there_is_no_pod(file: Path, option: str) -> None:
    result = run("repair", file, option, "no-such-pods.json", status=2)
    assert "neither a file that is there nor a list of pod uids" in result.stderr
    assert file.read_bytes() == FILE
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_check_against_a_machine(file: Path) -> None:
    assert run("check", file, "--machine", "1s4c2t", "--reserved-cpus", "0").stdout
    report = run("check", file, "--machine", "2s8c2t", "--reserved-cpus", "0", status=1).stdout
    assert "0-31" in report
    report = run("check", file, "--machine", "1s4c2t", "--reserved-cpus", "1", status=1).stdout
    assert 'not all reserved cpus: "1" are present in defaultCpuSet: "0,4-7"' in report
    assert "no such" in run("check", file, "--machine", "no/such", status=2).stderr.lower()


def test_a_missing_file(tmp_path: Path) -> None:
    for command in ("show", "check", "repair"):
        result = run(command, tmp_path / "none", status=2)
        assert result.stderr == f"Error: cannot read {tmp_path}/none: No such file or directory\n"


def test_repair_says_by_its_status_that_a_kubelet_still_refuses_the_file(tmp_path: Path) -> None:
    target = tmp_path / "cpu_manager_state"
    target.write_bytes(Path("examples/state/cpu_manager_state").read_bytes())
    node = ("--machine", "1s4c2t@16Gi", "--reserved-cpus", "0")
    result = run("repair", target, "--kubelet-version", "1.35", *node, status=1)
    assert "still error: could not restore state from checkpoint" in result.stderr
    assert f"pinfold state convert {target} --to v2" in result.stderr
    gate = ("--feature-gate", "PodLevelResourceManagers=true")
    run("repair", target, "--kubelet-version", "1.36", *gate, *node)


def test_repair_says_by_its_status_that_two_own_a_cpu(tmp_path: Path) -> None:
    target = tmp_path / "cpu_manager_state"
    target.write_text(
        '{"policyName":"static","defaultCpuSet":"3-7","entries":{"u0":{"a":"1-2"},"u1":{"b":"2"}},'
        '"podEntries":{"u0":{"cpuSet":"1-2"},"u1":{"cpuSet":"2"}},"checksum":0}'
    )
    gate = ("--feature-gate", "PodLevelResourceManagers=true")
    options = ("--kubelet-version", "1.36", *gate, "--machine", "1s4c2t@16Gi")
    result = run("repair", target, *options, "--reserved-cpus", "0", status=1)
    assert "still warning: CPUs 2 belong to pods 'u0' and 'u1'" in result.stderr
