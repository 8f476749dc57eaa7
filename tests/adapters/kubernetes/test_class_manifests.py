"""ResourceClass and ComputeResource among the pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pinfold.adapters.kubernetes.manifests import ManifestError, read_manifests
from pinfold.cli import main
from tests.roots import ROOT

CLASS = """\
kind: ResourceClass
metadata: {name: gold}
spec:
  labelSelector: [{matchExpressions: [{key: Kind, operator: In, values: [nvidia-gpu]}]}]
"""
POD = """\
kind: Pod
metadata: {name: NAME}
spec: {containers: [{name: app, resources: {limits: {cpu: 1, RESOURCE: 1}}}]}
"""
TEMPLATE = """\
kind: CronJob
metadata: {name: later}
spec: {jobTemplate: {spec: {template: {spec: {containers: [
  {name: app, resources: {limits: {gold: 1}}}]}}}}}
"""


def pod(name: str, resource: str) -> str:
    return POD.replace("NAME", name).replace("RESOURCE", resource)


def read(tmp_path: Path, *documents: str) -> str:
    path = tmp_path / "all.yaml"
    path.write_text("---\n".join(documents))
    return str(path)


def test_a_class_may_come_after_its_pods_and_nobody_changes_places(tmp_path: Path) -> None:
    path = read(tmp_path, pod("a", "memory"), pod("b", "gold"), TEMPLATE, pod("c", "memory"), CLASS)
    found = read_manifests([path])
    assert [one.name for one in found.pods] == ["a", "b", "later-0", "c"]
    assert [one.name for one in found.classes] == ["gold"]
    names = [sorted(one.containers[0].limits) for one in found.pods]
    assert names[1:3] == [["class.pinfold.dev/gold", "cpu"], ["class.pinfold.dev/gold"]]
    assert names[0] == names[3] == ["cpu", "memory"]
    assert found.notes == ()


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([pod("a", "gold")], r"line 1.*Pod 'a': .*limits\[gold\].*must be a standard resource"),
        ([CLASS, CLASS], r"document 2.*ResourceClass gold is there already .*document 1"),
        ([CLASS.replace("In,", "Eq,")], r"ResourceClass 'gold': spec.labelSelector\[0\].*\"Eq\""),
        (
            ["kind: ComputeResource\nmetadata: {name: x}\n"],
            "ComputeResource 'x': spec.resourceName: Required value",
        ),
        ([CLASS, pod("a", "gold").replace("gold: 1", "gold: 500m")], "must be an integer"),
        (
            [pod("a", "gold").replace("gold: 1", "gold: 1, class.pinfold.dev/gold: 1"), CLASS],
            (
                r"Pod 'a': spec.containers\[0\].resources.limits\[gold\]: Forbidden: "
                "class.pinfold.dev/gold is the same and is there, too; ask by one name"
            ),
        ),
        (
            [CLASS, pod("a", "glod")],
            r"limits\[glod\].*must be a standard resource for containers; did you mean gold\?",
        ),
        (
            [TEMPLATE.replace("gold: 1", "gold: 1, class.pinfold.dev/gold: 1"), CLASS],
            r"spec.jobTemplate.spec.template.spec.containers\[0\].resources.limits\[gold\]",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, documents: list[str], said: str
) -> None:
    with pytest.raises(ManifestError, match=f"(?s){said}"):
        read_manifests([read(tmp_path, *documents)])


def test_classes_of_other_groups_are_left_out(tmp_path: Path) -> None:
    """Kubernetes had a kind of this name once, for another purpose."""
    other = f"apiVersion: resource.k8s.io/v1alpha2\n{CLASS}"
    found = read_manifests([read(tmp_path, other)])
    assert found.classes == ()
    assert "left out" in found.notes[0]


CASES = [
    (
        "class gpu-silver selects 4 devices and may have 2: gpu-gold has a higher priority than 0",
        (),
    ),
    (
        "ComputeResource node-1-p100: nvidia.com/gpu has no device gpu-2",
        ("{numa: {0: 2, 1: 2}}", "2"),
    ),
    ("ComputeResource node-1-k80: no device of nvidia.com/gpu is known", ("nvidia.com", "amd.com")),
    (
        (
            "class gpu-silver selects no device of this node: none has Kind In nvidia-gpu; "
            "Kind is amd-gpu"
        ),
        ("nvidia.com", "amd.com"),
    ),
]


@pytest.mark.parametrize(("note", "change"), CASES)
def test_what_classes_lack_is_a_note(tmp_path: Path, note: str, change: tuple[str, ...]) -> None:
    folder = ROOT / "examples" / "classes"
    text = (folder / "devices.yaml").read_text()
    devices = tmp_path / "devices.yaml"
    devices.write_text(text.replace(change[0], change[1]) if change else text)
    done = CliRunner().invoke(
        main,
        ["plan", "--machine", "1s2n4c2t", "--devices", str(devices), "-o", "json"]
        + [str(folder / name) for name in ("pods.yaml", "classes.yaml")],
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [one for one in document["notes"] if one.startswith(note)]
    assert set(document["classes"]) == {"gpu-gold", "gpu-silver"}


MEMORY = """\
kind: ComputeResource
metadata: {name: NAME}
spec: {nodeName: node-1, resourceName: nvidia.com/gpu, devices: [gpu-2], properties: {memory: SIZE}}
"""
LICENCES = """\
kind: ResourceClass
metadata: {name: lic}
spec:
  labelSelector: [{matchExpressions: [{key: product, operator: Exists}]}]
  provisionConfig: {resourceType: CLUSTERLEVEL}
---
kind: ComputeResource
metadata: {name: licences}
spec: {resourceName: a.b/lic, properties: {product: x}}
status: {capacity: 1}
"""


@pytest.mark.parametrize(
    ("documents", "notes"),
    [
        (
            [CLASS.replace("key: Kind", "key: kind"), pod("a", "gold")],
            [
                (
                    "class gold selects no device of this node: none has kind In nvidia-gpu; "
                    "there is Kind, numaNode, resourceName"
                )
            ],
        ),
        (
            [CLASS, pod("a", "classes.pinfold.dev/gold")],
            [
                "classes.pinfold.dev/gold is not known here: planned without it (--devices)",
                "classes.pinfold.dev/gold is no class; did you mean class.pinfold.dev/gold?",
            ],
        ),
        (
            [
                CLASS,
                MEMORY.replace("NAME", "first").replace("SIZE", "16G"),
                MEMORY.replace("NAME", "second").replace("SIZE", "8G"),
            ],
            [
                (
                    "ComputeResource second: first says memory of gpu-2, too; it is 8G, as the "
                    "later one counts"
                )
            ],
        ),
        (
            [LICENCES, pod("a", "lic")],
            ["class lic is of the cluster level: planned without it"],
        ),
    ],
)
def test_what_is_meant_otherwise_is_a_note(
    tmp_path: Path, documents: list[str], notes: list[str]
) -> None:
    devices = str(ROOT / "examples" / "classes" / "devices.yaml")
    done = CliRunner().invoke(
        main,
        [
            *("plan", "--machine", "1s2n4c2t", "-o", "json"),
            *("--devices", devices, read(tmp_path, *documents)),
        ],
    )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout)["notes"] == notes


QUOTA = """\
kind: ResourceQuota
metadata: {name: gpu-quota-example}
spec: {hard: HARD}
"""
# By the raw name alone, by which those who ask for a class are not counted; some by class; all.
STEPS = [
    ('{requests.nvidia.com/gpu: "4"}', set[str]()),
    ('{requests.nvidia.com/gpu: "1", gpu-silver: "2", gpu-gold: "1"}', {"late"}),
    ('{requests.nvidia.com/gpu: "0", gpu-silver: "2", gpu-gold: "1"}', {"legacy", "late"}),
]


@pytest.mark.parametrize(("hard", "forbidden"), STEPS)
def test_quota_moves_to_classes_step_by_step(
    tmp_path: Path, hard: str, forbidden: set[str]
) -> None:
    """The proposal's example of a migration, in small."""
    folder = ROOT / "examples" / "classes"
    quota = tmp_path / "quota.yaml"
    quota.write_text(QUOTA.replace("HARD", hard))
    command = ["plan", "--machine", "1s2n4c2t", "--devices", str(folder / "devices.yaml")]
    files = [str(quota), *(str(folder / name) for name in ("pods.yaml", "classes.yaml"))]
    done = CliRunner().invoke(main, [*command, "-o", "json", *files])
    assert done.exit_code == 0, done.output
    found = {one["name"]: one["message"] or "" for one in json.loads(done.stdout)["pods"]}
    assert list(found) == ["train", "infer", "legacy", "late"]
    assert {name for name, said in found.items() if "exceeded quota" in said} == forbidden
    silver = "requests.class.pinfold.dev/gpu-silver"
    if "late" in forbidden:
        assert f"requested: {silver}=1, used: {silver}=2, limited: {silver}=2" in found["late"]
