"""``pinfold audit`` as it is typed: on trees of a kubelet's node, and on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pinfold.adapters.procfs.files import KernelFiles
from pinfold.adapters.procfs.machine import read_online
from pinfold.audit.audit import AuditReport
from pinfold.audit.findings import KINDS, Finding
from pinfold.audit.record import AuditRecord
from pinfold.audit.snapshot import KernelSnapshot
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.audit_text import render_audit
from pinfold.render.terminal import Style, cell_width
from pinfold.state.ledger import Ledger
from pinfold.state.restore import to_checkpoint
from tests.roots import ROOT
from tests.scenes.audited import LEDGER, found, run
from tests.scenes.kernel_tree import ID_A, ID_B, ID_P, SLICE, UID, V2, KernelTree, kubelet_node

DOCS = ROOT / "docs" / "how-to" / "audit.md"


@pytest.fixture
def node(tmp_path: Path) -> KernelTree:
    """A kubelet's node on which the kernel agrees with the state file."""
    tree = kubelet_node(tmp_path)
    tree.write("var/lib/kubelet/cpu_manager_state", to_checkpoint(LEDGER).encode().decode())
    return tree


def test_a_node_on_which_all_is_well(node: KernelTree) -> None:
    text = run("--kubelet", "--root", node.root).stdout
    assert text.startswith("✓ the kernel agrees\n")
    assert f"✓ {UID}/app (aaaaaaaaaaaa)\n    CPUs 2-3\n" in text
    document = json.loads(run("--kubelet", "--root", node.root, "-o", "json").stdout)
    assert (document["version"], document["kind"]) == (1, "Audit")
    assert document["verdict"] == "clean"
    assert document["findings"] == []
    assert document["record"]["shared"] == "0-1,4-7"
    assert document["owners"][0]["effective"] == "2-3"
    assert document["kernel"]["cgroup_version"] == 2


def test_everything_that_can_be_wrong_with_a_node(node: KernelTree) -> None:
    pod = f"/{SLICE}"
    node.group(f"{SLICE}/cri-containerd-{ID_A}.scope", "2-4", "2-4", quota="150000", mems="0-1")
    node.group(f"{SLICE}/cri-containerd-{ID_B}.scope", "0-7", "0-7")
    node.write(f"{V2}/{SLICE}/cri-containerd-{ID_A}.scope/cpuset.cpus.partition", "root invalid\n")
    annotations = {"io.kubernetes.cri.container-name": "app"}
    config = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID_A}/config.json"
    node.write(config, json.dumps({"annotations": annotations}))
    node.task(502, f"{pod}/cri-containerd-{ID_P}.scope", "0-7", 1, comm="pause")
    node.task(600, "/system.slice/cron.service", "0-7", 3, comm="cron")
    node.task(601, "/system.slice/sshd.service", "0-7", 0, comm="sshd")
    node.task(60, "/", "0-7", 0, comm="kswapd0", flags=0x00200000)
    node.task(61, "/", "2", 2, comm="migration/2", flags=0x04200000)
    node.interrupt(30, "0-7", "2", "nvme0q1")
    node.interrupt(31, "0-7", "1", "nvme0q2")
    node.write("proc/irq/default_smp_affinity", "ff\n")
    node.write("sys/devices/virtual/workqueue/cpumask", "ff\n")
    result = run("--kubelet", "--root", node.root, "-o", "json", status=1)
    slugs = found(result)
    assert list(slugs) == [
        "cpuset-differs",
        "shared-overlaps",
        "stranger-ran",
        "kernel-thread",
        "partition-invalid",
        "quota-caps",
        "irq-delivered",
        "sandbox-allowed",
        "irq-allowed",
        "irq-default",
        "mems-wider",
        "workqueue",
    ]
    scope = f"/{V2}/{SLICE}/cri-containerd"
    assert slugs["cpuset-differs"]["fix"] == [f"echo 2-3 > {scope}-{ID_A}.scope/cpuset.cpus"]
    assert slugs["shared-overlaps"]["fix"] == [f"echo 0-1,4-7 > {scope}-{ID_B}.scope/cpuset.cpus"]
    assert slugs["stranger-ran"]["where"] == "/system.slice"
    assert slugs["stranger-ran"]["count"] == 2
    assert slugs["stranger-ran"]["fix"] == [
        "systemctl set-property --runtime system.slice AllowedCPUs=0-1,4-7"
    ]
    assert slugs["sandbox-allowed"]["fix"] == [
        f"systemctl set-property --runtime cri-containerd-{ID_P}.scope AllowedCPUs=0-1,4-7"
    ]
    assert slugs["kernel-thread"]["fix"] == ["taskset -pc 0-1,4-7 60"]
    assert slugs["quota-caps"]["fix"] == [f"echo max > {scope}-{ID_A}.scope/cpu.max"]
    assert slugs["irq-delivered"]["fix"] == ["echo 0-1,4-7 > /proc/irq/30/smp_affinity_list"]
    text = run("--kubelet", "--root", node.root, status=1).stdout
    assert text.startswith("✗ the kernel does not agree: 3 errors, 4 warnings, 5 infos\n")
    assert f"✗ {UID}/app (aaaaaaaaaaaa)\n    CPUs 2-3; the kernel has 2-4\n" in text


def test_infos_count_only_when_that_is_wanted(node: KernelTree) -> None:
    node.write("sys/devices/virtual/workqueue/cpumask", "ff\n")
    assert run("--kubelet", "--root", node.root).stdout.startswith("✓ the kernel agrees: 1 info\n")
    strict = run("--kubelet", "--root", node.root, "--strict", status=1)
    assert strict.stdout.startswith("✗ the kernel does not agree: 1 info\n")
    document = run("--kubelet", "--root", node.root, "--strict", "-o", "json", status=1).stdout
    assert json.loads(document)["verdict"] == "findings"


def test_a_pod_that_is_gone_names_the_repair(node: KernelTree) -> None:
    state = node.root / "state"
    state.write_bytes(
        to_checkpoint(Ledger("static", CPUSet([0]), {"u-9": {"x": CPUSet([2])}})).encode()
    )
    result = run("--kubelet", "--state", state, "--root", node.root, "-o", "json", status=1)
    missing = found(result)["cgroup-missing"]
    assert missing["fix"] == [f"pinfold state repair {state} --drop-missing-pods u-9"]


def test_a_record_with_a_wrong_checksum_or_two_owners_of_a_cpu(node: KernelTree) -> None:
    state = node.root / "var/lib/kubelet/cpu_manager_state"
    state.write_text(state.read_text().replace('"0-1,4-7"', '"0-7"'))
    slugs = found(run("--kubelet", "--root", node.root, "-o", "json", status=1))
    assert "could not restore state from checkpoint" in slugs["record-broken"]["what"]
    assert "the checksum in the file is" in slugs["record-broken"]["why"]
    assert slugs["record-broken"]["fix"] == [f"pinfold state repair {state}"]
    assert "shared pool too" in slugs["record-doubtful"]["what"]


def test_owners_on_the_command_line(node: KernelTree) -> None:
    scope = f"{SLICE}/cri-containerd-{ID_A}.scope"
    result = run("--owner", f"2-3=/{V2}/{scope}", "--root", node.root, "-o", "json")
    document = json.loads(result.stdout)
    assert document["record"]["source"] == "--owner"
    assert document["owners"][0]["cgroups"] == [f"/{scope}"]
    wrong = run("--owner", f"2-4=/{scope}", "--root", node.root, "-o", "json", status=1)
    assert "cpuset-differs" in found(wrong)
    both = run("--kubelet", "--owner", f"5=/{scope}x", "--root", node.root, "-o", "json", status=1)
    assert len(json.loads(both.stdout)["owners"]) == 2


def test_pinfolds_own_record_is_the_default(tmp_path: Path) -> None:
    tree = KernelTree(tmp_path)
    tree.machine()
    tree.unified()
    tree.write("var/lib/pinfold/cpu_manager_state", to_checkpoint(LEDGER).encode().decode())
    tree.group(f"pinfold/exclusive/pod-{UID}/app", "2-3", "2-3", mems="0")
    tree.group("pinfold/shared", "0-1,4-7", "0-1,4-7")
    tree.task(500, f"/pinfold/exclusive/pod-{UID}/app", "2-3", 2)
    assert run("--root", tmp_path).stdout.startswith("✓ the kernel agrees\n")
    tree.group("pinfold/shared", "0-7", "0-7")
    result = run("--root", tmp_path, "-o", "json", status=1)
    assert found(result)["shared-overlaps"]["fix"] == [
        f"echo 0-1,4-7 > /{V2}/pinfold/shared/cpuset.cpus"
    ]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--owner", "2"], "expected CPUS=CGROUP"),
        (["--owner", "x=/a"], "is no CPU id or range"),
        (["--owner", "=/a"], "no CPUs"),
        (["--owner", "1=/"], "expected CPUS=CGROUP"),
        (["--state", "nowhere"], "nowhere: no such file; no agent has run here"),
        (["--kubelet", "--state", "nowhere"], "a kubelet writes it when its CPU manager starts"),
        (["--root", "nowhere"], "does not exist"),
        (["-o", "svg"], "svg"),
    ],
)
def test_usage(args: list[str], problem: str) -> None:
    result = run(*args, status=2)
    assert problem in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "unexpected end of JSON input"),
        (b"{}", "none of the keys"),
        (b'{"policyName":"None","machineState":{},"checksum":1}', "needs cpu_manager_state"),
        (b'{"policyName":"static","defaultCpuSet":"0-","checksum":0}', "could not parse"),
    ],
)
def test_files_of_no_use(node: KernelTree, content: bytes, problem: str) -> None:
    state = node.root / "state"
    state.write_bytes(content)
    result = run("--kubelet", "--state", state, "--root", node.root, status=2)
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_directory_that_is_no_machine(tmp_path: Path) -> None:
    result = run("--owner", "1=/x", "--root", tmp_path, status=2)
    assert "/sys/devices/system/cpu/online: missing or empty" in result.stderr


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_narrow_terminals(node: KernelTree, width: int) -> None:
    node.task(600, "/system.slice/cron.service", "0-7", 3, comm="\x1b[31mred")
    node.write(f"{V2}/{SLICE}/cpu.max", "1 100000\n")
    args = ("--kubelet", "--root", node.root)
    text = run(*args, status=1, COLUMNS=str(width)).stdout
    assert "\x1b" not in text
    fixes = False
    for line in text.splitlines():
        fixes = line.startswith("  fix") or (fixes and line.startswith("        "))
        # A command's words stay whole, so that it can be copied.
        assert fixes or cell_width(line) <= width, line
    assert "\x1b[" in run(*args, "--color", status=1).stdout
    assert "\x1b" not in run(*args, status=1, NO_COLOR="1").stdout


def test_commands_can_be_copied() -> None:
    """What is broken over lines is the same command to a shell; a very long one is only named."""
    command = "for i in " + " ".join(str(n) for n in range(60)) + "; do echo 'a b' > /x/$i; done"
    finding = Finding(KINDS[0], "what", "where", fix=(command, "x" * 1000), count=0)
    report = AuditReport(KernelSnapshot(CPUSet([0])), AuditRecord("test"), (finding,))
    text = render_audit(report, Style(40))
    lines = text[text.index("  fix") :].splitlines()
    joined = "\n".join(line[8:] for line in lines).replace("\\\n", "")
    assert joined.splitlines()[0] == command
    assert "the whole command: -o json" in joined


def test_this_machine() -> None:
    """The shell that runs the tests is a stranger on whatever CPU is taken."""
    last = max(read_online(KernelFiles()))
    result = run("--owner", f"{last}=/no/such/cgroup", "-o", "json", status=1)
    slugs = found(result)
    assert "cgroup-missing" in slugs
    if last in os.sched_getaffinity(os.getppid()):
        assert {"stranger-ran", "stranger-allowed"} & set(slugs)
    run("--owner", f"{last}=/no/such/cgroup", status=1)
    beyond = max(KernelFiles().cpus("/sys/devices/system/cpu/present") or ()) + 7
    none = run("--owner", f"{beyond}=/no/such/cgroup", status=2)
    assert f"there is no CPU {beyond}; this machine has CPUs" in " ".join(none.stderr.split())


def test_every_kind_is_documented() -> None:
    page = DOCS.read_text()
    for kind in KINDS:
        assert f"| `{kind.slug}` | {kind.severity.value} | {kind.title} | {kind.remedy} |" in page
