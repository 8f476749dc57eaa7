"""``pinfold plan``, ``explain`` and ``topology`` as a user calls them, good input and bad."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.roots import ROOT

POD = """
apiVersion: v1
kind: Pod
metadata: {name: feed}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 2, memory: 1Gi}}
"""
STATIC = ["--machine", "2s4c2t", "--policy", "static", "--reserved-cpus", "0"]
CONFIG = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0"
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to_file


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def refused(result: Result, *words: str) -> None:
    """One clear line, exit code 2, no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.count("\n") <= 4, result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


def test_json_has_the_promised_fields(write: Write) -> None:
    result = run("plan", *STATIC, write("pod.yaml", POD), "-o", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["pods"][0]["containers"] == [
        {
            "name": "app",
            "kind": "container",
            "cpus": "2-3",
            "exclusive": True,
            "numa_nodes": [],
            "memory": [],
            "devices": {},
        }
    ]
    assert (document["shared"], document["reserved"]) == ("0-1,4-15", "0")
    assert document["allocatable"] == "1-15"


def test_flags_without_an_effect_are_noted(write: Write) -> None:
    pod, file = write("pod.yaml", POD), write("kubelet.yaml", CONFIG + "pinfold: {}\n")
    machine = ["--machine", "2s4c2t", "-o", "json"]

    def notes(*flags: str) -> list[str]:
        result = run("plan", *machine, *flags, pod)
        assert result.exit_code == 0, result.output
        found: list[str] = json.loads(result.stdout)["notes"]
        return found

    assert notes(*STATIC[2:]) == notes("--kubelet-config", file) == []
    unknown = ["feature gates without an effect here: Foo"]
    assert notes("--feature-gate", "Foo=true") == unknown
    assert notes("--kubelet-config", file, "--feature-gate", "Foo=true") == unknown
    assert notes("--kubelet-config", file, "--policy", "dynamic") == []
    idle = write("idle.yaml", CONFIG + "pinfold: {dynamic: {makeRoom: true}}\n")
    (idly,) = notes("--kubelet-config", idle)
    assert "pinfold.dynamic has no effect" in idly
    assert notes("--kubelet-config", idle, "--policy", "dynamic")
    gated = write("gated.yaml", CONFIG + "featureGates: {Foo: true}\n")
    (only,) = notes("--kubelet-config", gated, "--policy", "static")
    assert only == f"{gated}: {unknown[0]}"


@pytest.mark.parametrize("value", ["always", "require"])
def test_isolated_cpus_are_a_wish_where_the_file_has_a_section(write: Write, value: str) -> None:
    said = f"{{name: feed, annotations: {{isolated-cpus.pinfold.dev/pod: {value}}}}}"
    pod = write("pod.yaml", POD.replace("{name: feed}", said))
    outcome = {}
    for name, section in (("kubelet", ""), ("own", "pinfold: {}\n")):
        file = write(f"{name}.yaml", CONFIG + section)
        result = run("plan", "--machine", "2s4c2t", "--kubelet-config", file, pod, "-o", "json")
        document = json.loads(result.stdout)
        outcome[name] = (document["pods"][0]["admitted"], len(document["notes"]))
    assert outcome == {"kubelet": (True, 1), "own": (False, 0)}


def test_text_svg_and_standard_input(write: Write) -> None:
    text = run("plan", *STATIC, "-", stdin=POD)
    assert (text.exit_code, "default/feed" in text.stdout) == (0, True)
    assert "\x1b" not in text.stdout
    svg = run("plan", *STATIC, write("pod.yaml", POD), "-o", "svg")
    assert ET.fromstring(svg.stdout).tag.endswith("svg")  # noqa: S314 - our own output


def test_flags_win_over_the_file(write: Write) -> None:
    config = write("kubelet.yaml", CONFIG)
    pod = write("pod.yaml", POD)
    base = ["plan", "--machine", "2s4c2t", "--kubelet-config", config, pod, "-o", "json"]
    assert json.loads(run(*base).stdout)["reserved"] == "0"
    assert json.loads(run(*base, "--reserved-cpus", "0-1").stdout)["reserved"] == "0-1"


def test_the_specifications_option_name_is_an_alias(write: Write) -> None:
    odd = write("odd.yaml", POD.replace("cpu: 2", "cpu: 3"))
    option = ["--policy-option", "reject-non-smt-aligned=true"]
    result = run("plan", *STATIC, *option, odd, "-o", "json")
    assert json.loads(result.stdout)["pods"][0]["reason"] == "SMTAlignmentError"


def test_what_is_in_force_on_one_side_only_is_compared(write: Write) -> None:
    own = write("own.yaml", CONFIG + "pinfold: {lending: {use: true}, partition: isolated}\n")
    base = ["plan", "--machine", "2s4c2t", write("pod.yaml", POD), "--kubelet-config"]
    plain = write("plain.yaml", CONFIG)
    for before, after, sign in ((plain, own, "+"), (own, plain, "-")):
        told = run(*base, before, "--compare", after)
        assert told.exit_code == 0, told.output
        besides = told.stdout[told.stdout.index("Besides") :]
        assert f"{'+' if sign == '-' else '-'} nothing" in besides
        assert f"{sign} lending" in besides or "; lending" in " ".join(besides.split())
        svg = run(*base, before, "--compare", after, "-o", "svg")
        assert svg.exit_code == 0
    same = run(*base, own, "--compare", own)
    assert "Besides" not in same.stdout


def test_compare_names_what_changes(write: Write) -> None:
    new = write("new.yaml", CONFIG + "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n")
    odd = write("odd.yaml", POD.replace("cpu: 2", "cpu: 3"))
    document = json.loads(run("plan", *STATIC, odd, "--compare", new, "-o", "json").stdout)
    assert document["changed"] == [{"namespace": "default", "name": "feed"}]
    text = run("plan", *STATIC, odd, "--compare", new)
    assert "SMTAlignmentError" in text.stdout
    svg = run("plan", *STATIC, odd, "--compare", new, "-o", "svg")
    assert ET.fromstring(svg.stdout).tag.endswith("svg")  # noqa: S314 - our own output


def test_resizes_are_answered_in_order_and_shown(write: Write) -> None:
    base = ["plan", *STATIC, write("pod.yaml", POD)]
    asked = ["--resize", "pod/feed=4", "--resize", "pod/feed/app=1", "--resize", "feed=3"]
    result = run(*base, *asked, "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [(r["feasible"], r["before"], r["after"]) for r in document["resizes"]] == [
        (True, "2-3", "2-5"),
        (False, "2-5", "2-5"),
        (True, "2-5", "2-4"),
    ]
    assert document["pods"][0]["containers"][0]["cpus"] == "2-4"
    assert document["shared"] == "0-1,5-15"
    text = run(*base, *asked)
    assert text.exit_code == 0
    assert "prohibitedCPUAllocationError" in text.stdout
    assert "2-3 → 2-5" in text.stdout
    svg = run(*base, *asked, "-o", "svg").stdout
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own output
    assert "default/feed app: 2 → 4 CPUs" in svg


def test_resizes_hold_for_both_sides_of_a_comparison(write: Write) -> None:
    new = write("new.yaml", CONFIG + "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n")
    base = ["plan", *STATIC, write("pod.yaml", POD), "--compare", new, "--resize", "pod/feed=3"]
    document = json.loads(run(*base, "-o", "json").stdout)
    sides = [document[side]["resizes"][0]["feasible"] for side in ("before", "after")]
    assert sides == [True, False]
    assert document["changed"] == [{"namespace": "default", "name": "feed"}]


def test_a_plan_says_by_whose_rules_resizes_are_answered(write: Write) -> None:
    base = ["plan", *STATIC, write("pod.yaml", POD), "--resize", "pod/feed=4"]
    asked: tuple[tuple[list[str], str, bool], ...] = (
        ([], "KEP-5554", True),
        (["--kubelet-version", "1.36"], "kubelet", False),
    )
    for options, rules, feasible in asked:
        document = json.loads(run(*base, *options, "-o", "json").stdout)
        assert document["resize_rules"] == rules
        assert document["resizes"][0]["feasible"] == feasible
        header = run(*base, *options).stdout.partition("\n\n")[0]
        assert ("Pinfold's rules" in " ".join(header.split())) == (rules == "KEP-5554")


def test_both_sides_of_a_comparison_of_kubelets_answer_resizes_as_kubelets(write: Write) -> None:
    base = ["plan", *STATIC, "--resize", "pod/feed=4", "--compare-kubelet-version", "1.35"]
    document = json.loads(run(*base, write("pod.yaml", POD), "-o", "json").stdout)
    for side in ("before", "after"):
        assert document[side]["resize_rules"] == "kubelet"
        assert document[side]["resizes"][0]["reason"] == "Infeasible"
    own = write("own.yaml", CONFIG + "pinfold: {}\n")
    told = run(*base, write("pod.yaml", POD), "--kubelet-config", own).stdout
    assert "resizes are answered by Pinfold's rules" in " ".join(told.split())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("pod/feed", ["--resize", "pod/NAME[/CONTAINER]=N"]),
        ("pod/feed=two", ["'two'", "whole number"]),
        ("pod/other=2", ["no pod 'other'", "there are feed"]),
        ("pod/feed/side=2", ["no container 'side'", "it has app"]),
    ],
)
def test_resizes_that_cannot_be_asked_for(write: Write, value: str, words: list[str]) -> None:
    refused(run("plan", *STATIC, write("pod.yaml", POD), "--resize", value), *words)


def test_explain_says_why(write: Write) -> None:
    odd = write("odd.yaml", POD.replace("cpu: 2", "cpu: 3"))
    option = ["--policy-option", "full-pcpus-only=true"]
    result = run("explain", *STATIC, *option, odd, "--pod", "feed")
    assert result.exit_code == 0
    assert "ask for 4 CPUs instead of 3" in result.stdout
    document = json.loads(
        run("explain", *STATIC, *option, odd, "--pod", "default/feed", "-o", "json").stdout
    )
    assert document["remedies"]
    refused(run("explain", *STATIC, odd, "--pod", "other"), "no pod 'other'", "feed")


def test_topology_of_a_short_form() -> None:
    result = run("topology", "--machine", "2s4c2t", "-o", "json")
    document = json.loads(result.stdout)
    assert [len(document[key]) for key in ("cpus", "sockets", "cores", "numa", "l3")] == [
        16,
        2,
        8,
        2,
        2,
    ]
    assert run("topology", "--machine", "2s4c2t").exit_code == 0
    svg = run("topology", "--machine", "2s4c2t", "-o", "svg").stdout
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("cpu: 2", "cpu: -2"), ["spec.containers[0].resources", "greater than or equal to 0"]),
        (("cpu: 2", "cpu: 2x"), ["limits.cpu", "2x"]),
        (("kind: Pod", "kin: Pod"), ["kind is missing"]),
        (("- name: app", "- nam: app"), ["spec.containers[0].name", "Required value"]),
        (("metadata: {name: feed}", "metadata: {}"), ["metadata.name", "Required value"]),
        (("  containers:", "  other:"), ["spec.containers", "Required value"]),
        (("metadata: {name: feed}", "metadata: {name: feed"), ["line", "not YAML"]),
        (
            ("{limits: {cpu: 2, memory: 1Gi}}", "{limits: {cpu: 1}, requests: {cpu: 2}}"),
            ['"2": must be less than or equal to cpu limit of 1'],
        ),
    ],
)
def test_bad_manifests(write: Write, change: tuple[str, str], words: list[str]) -> None:
    changed = POD.replace(*change)
    assert changed != POD
    refused(run("plan", *STATIC, write("pod.yaml", changed)), "pod.yaml", *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--policy", "dynamic"], ['unknown policy: "dynamic"', "none or static"]),
        (["--policy-option", "fast=true"], ["fast", "full-pcpus-only"]),
        (["--policy-option", "fast"], ["--policy-option", "KEY=VALUE"]),
        (["--policy-option", "full-pcpus-only=maybe"], ["full-pcpus-only", "invalid syntax"]),
        (
            [
                "--policy-option",
                "full-pcpus-only=true",
                "--policy-option",
                "distribute-cpus-across-cores=true",
                "--feature-gate",
                "CPUManagerPolicyAlphaOptions=true",
            ],
            ["full-pcpus-only and distribute-cpus-across-cores can not be used at the same time"],
        ),
        (["--policy-option", "align-by-socket=true"], ["Alpha-level Options not enabled"]),
        (["--reserved-cpus", "99"], ["unknown CPU ID: 99", "0-15"]),
        (["--reserved-cpus", "a-b"], ["--reserved-cpus", "a-b"]),
        (["--reserved-cpus", "", "--kube-reserved", "cpu=0"], ["greater than zero"]),
        (["--topology-manager-policy", "odd"], ['"odd"', "single-numa-node"]),
        (
            ["--topology-manager-policy", "restricted", "--topology-manager-scope", "odd"],
            ['"odd"', "container"],
        ),
        (["--kubelet-config", "nowhere.yaml"], ["nowhere.yaml", "No such file"]),
        (["--machine", "capture.tar.xzz"], ["capture.tar.xzz", "no such file"]),
        (["--machine", "0s4c"], ["0s4c"]),
    ],
)
def test_bad_flags(write: Write, flags: list[str], words: list[str]) -> None:
    pairs = zip(STATIC[::2], STATIC[1::2], strict=True)
    others = [word for name, value in pairs if name not in flags for word in (name, value)]
    refused(run("plan", *others, *flags, write("pod.yaml", POD)), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Pod\n", ["kubelet.yaml", "KubeletConfiguration"]),
        ("a: [\n", ["kubelet.yaml", "line", "not YAML"]),
        (CONFIG + "topologyManagerPolicy: odd\n", ["topologyManagerPolicy", "must be one of"]),
        (CONFIG + 'kubeReserved: {cpu: "-1"}\n', ["kubeReserved", "negative"]),
        (CONFIG + "cpuManagerReconcilePeriod: soon\n", ["cpuManagerReconcilePeriod", "10s"]),
        (
            CONFIG + "systemReservedCgroup: /system.slice\n",
            ["reservedSystemCPUs", "systemReservedCgroup"],
        ),
    ],
)
def test_bad_configurations(write: Write, text: str, words: list[str]) -> None:
    config = write("kubelet.yaml", text)
    refused(
        run("plan", "--machine", "2s4c2t", "--kubelet-config", config, write("pod.yaml", POD)),
        *words,
    )


def test_unknown_fields_are_reported_and_not_refused(write: Write) -> None:
    config = write("kubelet.yaml", CONFIG + "cpuManagerPolcy: none\nclusterDomain: x\n")
    arguments = ["plan", "--machine", "2s4c2t", "--kubelet-config", config, write("p.yaml", POD)]
    result = run(*arguments)
    assert result.exit_code == 0
    assert "cpuManagerPolcy" in result.stdout
    assert "clusterDomain" not in result.stdout
    notes = json.loads(run(*arguments, "-o", "json").stdout)["notes"]
    assert any("did you mean cpuManagerPolicy?" in note for note in notes)


def test_a_truncated_capture_is_named(write: Write, tmp_path: Path) -> None:
    capture = tmp_path / "node.tar.xz"
    capture.write_bytes(b"\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4F")
    refused(run("plan", "--machine", str(capture), write("pod.yaml", POD)), "node.tar.xz")
    missing = str(tmp_path / "nowhere.yaml")
    refused(run("plan", *STATIC, missing), "nowhere.yaml", "no such file")


def test_the_picture_in_the_readme_is_the_plan_of_the_examples() -> None:
    root = ROOT
    examples = root / "examples"
    config = str(examples / "kubelet.yaml")
    result = run(
        "plan",
        "--machine",
        "2s8c2t",
        "--kubelet-config",
        config,
        str(examples / "pods"),
        "-o",
        "svg",
    )
    assert result.stdout == (root / "docs" / "pictures" / "plan.svg").read_text(encoding="utf-8")


def test_many_notes_of_one_kind_are_one_line(write: Write) -> None:
    services = "---\n".join(f"kind: Service\nmetadata: {{name: s{at}}}\n" for at in range(3000))
    file = write("many.yaml", f"{POD}---\n{services}")
    document = json.loads(run("plan", *STATIC, "-o", "json", file).stdout)
    [note] = document["notes"]
    assert note.startswith("Service has no pods, left out (3,000 times: ")
    assert run("plan", *STATIC, file).stdout.count("left out") == 1
