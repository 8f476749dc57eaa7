"""Manifests: what is read from which file, and the one clear error for each that is bad."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.kubernetes.manifests import MAX_REPLICAS, ManifestError, read_manifests
from pinfold.core.pod.pod import Pod, QOSClass, guaranteed_cpus
from pinfold.core.values.quantity import Quantity

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: feed, namespace: trading}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 2, memory: 1Gi}}
"""
TEMPLATE = "{spec: {containers: [{name: app, resources: {requests: {cpu: 500m}}}]}}"

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> str:
        path = tmp_path / "pods.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to_file


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [f"{pod.namespace}/{pod.name}" for pod in pods]


def test_a_pod_with_defaults(write: Write) -> None:
    read = read_manifests([write(POD)])
    [pod] = read.pods
    assert (pod.name, pod.namespace, pod.uid) == ("feed", "trading", "trading/feed")
    assert pod.qos is QOSClass.GUARANTEED
    assert pod.containers[0].requests["cpu"] == Quantity.parse("2")
    assert read.notes == ()


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Deployment", f"{{replicas: 3, template: {TEMPLATE}}}", 3),
        ("Deployment", f"{{template: {TEMPLATE}}}", 1),
        ("Deployment", f"{{replicas: 0, template: {TEMPLATE}}}", 0),
        ("StatefulSet", f"{{replicas: 2, template: {TEMPLATE}}}", 2),
        ("ReplicaSet", f"{{replicas: 2, template: {TEMPLATE}}}", 2),
        ("ReplicationController", f"{{replicas: 2, template: {TEMPLATE}}}", 2),
        ("DaemonSet", f"{{template: {TEMPLATE}}}", 1),
        ("Job", f"{{parallelism: 4, completions: 3, template: {TEMPLATE}}}", 3),
        ("Job", f"{{parallelism: 4, template: {TEMPLATE}}}", 4),
        ("Job", f"{{completions: 9, template: {TEMPLATE}}}", 1),
        ("CronJob", f"{{jobTemplate: {{spec: {{parallelism: 2, template: {TEMPLATE}}}}}}}", 2),
    ],
)
def test_workloads(write: Write, kind: str, spec: str, count: int) -> None:
    read = read_manifests([write(f"kind: {kind}\nmetadata: {{name: web}}\nspec: {spec}\n")])
    assert names(read.pods) == [f"default/web-{index}" for index in range(count)]
    assert len({pod.uid for pod in read.pods}) == count


def test_lists_and_streams(write: Write) -> None:
    pods = [{**yaml.safe_load(POD), "metadata": {"name": f"p{i}"}} for i in range(4)]
    as_list = {"apiVersion": "v1", "kind": "List", "items": pods}
    as_pod_list = {"kind": "PodList", "items": [{**p, "kind": "Pod"} for p in pods]}
    bare = [{"metadata": pod["metadata"], "spec": pod["spec"]} for pod in pods]
    without_kind = {"kind": "PodList", "items": bare}
    expected = [f"default/p{i}" for i in range(4)]
    for content in (as_list, as_pod_list, without_kind):
        assert names(read_manifests([write(json.dumps(content))]).pods) == expected
        assert names(read_manifests([write(yaml.safe_dump(content))]).pods) == expected
    assert names(read_manifests([write(yaml.safe_dump_all(pods))]).pods) == expected
    assert names(read_manifests([write("\ufeff" + json.dumps(as_list, indent=1))]).pods) == expected


def test_json_values_one_after_the_other(write: Write) -> None:
    pods = [{**yaml.safe_load(POD), "metadata": {"name": f"p{i}"}} for i in range(3)]
    for separator in ("", "\n", "\n\n  "):
        text = separator.join(json.dumps(pod, indent=2) for pod in pods)
        assert names(read_manifests([write(text)]).pods) == [f"default/p{i}" for i in range(3)]


def test_names_that_the_api_server_would_make(write: Write) -> None:
    pod = POD.replace("name: feed, ", "generateName: feed-, ")
    job = f"kind: Job\nmetadata: {{generateName: run-}}\nspec: {{template: {TEMPLATE}}}\n"
    read = read_manifests([write(f"{pod}---\n{job}---\n{pod}---\n{job}")])
    assert names(read.pods) == [
        "trading/feed-0",
        "default/run-0-0",
        "trading/feed-1",
        "default/run-1-0",
    ]


def test_a_stateful_set_may_start_above_nought(write: Write) -> None:
    spec = f"{{replicas: 2, ordinals: {{start: 5}}, template: {TEMPLATE}}}"
    read = read_manifests([write(f"kind: StatefulSet\nmetadata: {{name: db}}\nspec: {spec}\n")])
    assert names(read.pods) == ["default/db-5", "default/db-6"]


@pytest.mark.parametrize(
    ("version", "kind", "counted"),
    [
        ("v1", "Pod", True),
        ("apps/v1", "Deployment", True),
        ("extensions/v1beta1", "Deployment", True),
        ("batch/v1", "Job", True),
        ("v1", "ReplicationController", True),
        ("batch.volcano.sh/v1alpha1", "Job", False),
        ("argoproj.io/v1alpha1", "Rollout", False),
        ("example.com/v1", "Pod", False),
    ],
)
def test_only_the_kinds_of_kubernetes_itself_are_planned(
    write: Write, version: str, kind: str, counted: bool
) -> None:
    body = POD.split("spec:")[1] if kind == "Pod" else f" {{replicas: 1, template: {TEMPLATE}}}\n"
    read = read_manifests(
        [write(f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec:{body}")]
    )
    assert len(read.pods) == counted
    assert len(read.notes) == (not counted)
    if kind == "Rollout":
        assert "Rollout of argoproj.io/v1alpha1 is no kind whose pods are known" in read.notes[0]


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        ("{phase: Running}", True),
        ("{phase: Pending}", True),
        ("{phase: Succeeded}", False),
        ("{phase: Failed, containerStatuses: [{name: app}]}", False),
        ("{phase: Failed, reason: Evicted}", False),
        ("{phase: Failed, reason: SMTAlignmentError}", True),
        ("{phase: [1]}", True),
    ],
)
def test_pods_that_have_ended_are_left_out(write: Write, status: str, counted: bool) -> None:
    read = read_manifests([write(f"{POD}status: {status}\n")])
    assert len(read.pods) == counted
    assert [note for note in read.notes if "trading/feed has ended" not in note] == []
    assert len(read.notes) == (not counted)


def test_other_kinds_are_noted(write: Write) -> None:
    text = f"kind: Service\nmetadata: {{name: web}}\n---\n{POD}---\nkind: ConfigMap\n"
    read = read_manifests([write(text)])
    assert names(read.pods) == ["trading/feed"]
    assert [note.split(": ", 1)[1] for note in read.notes] == [
        "document 1 (line 1): Service has no pods, left out",
        "document 3 (line 12): ConfigMap has no pods, left out",
    ]


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n", "---\n---\n"])
def test_a_file_with_nothing_in_it_is_noted_beside_others(write: Write, text: str) -> None:
    pod, empty = write(POD), Path(write(POD)).with_name("empty.yaml")
    empty.write_text(text)
    read = read_manifests([str(empty), pod])
    assert len(read.pods) == 1
    assert [note.endswith("empty.yaml: nothing in it") for note in read.notes] == [True]
    with pytest.raises(ManifestError, match=r"empty.yaml: nothing in it; name a file with"):
        read_manifests([str(empty)])


def test_folders_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "c.json"):
        pod = {**yaml.safe_load(POD), "metadata": {"name": name[0]}}
        (tmp_path / name).write_text(json.dumps(pod), encoding="utf-8")
    (tmp_path / "README.md").write_text("no manifest", encoding="utf-8")
    (tmp_path / "d.yaml").mkdir()
    assert names(read_manifests([str(tmp_path)]).pods) == ["default/a", "default/b", "default/c"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(POD.encode())))
    assert names(read_manifests(["-"]).pods) == ["trading/feed"]


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(POD,))
    writer.start()
    assert names(read_manifests([str(pipe)]).pods) == ["trading/feed"]
    writer.join()


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"kind: \xff\xfe")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in (
        (str(tmp_path / "none.yaml"), "none.yaml: no such file or folder"),
        (str(empty), "no *.yaml, *.yml or *.json file in this folder"),
        (str(binary), "not UTF-8 text (byte 6)"),
        ("a\0b", "no such file or folder"),
    ):
        with pytest.raises(ManifestError) as caught:
            read_manifests([path])
        assert words in str(caught.value)


def resources(text: str) -> str:
    return POD.replace("{limits: {cpu: 2, memory: 1Gi}}", text)


def workload(name: str, replicas: object) -> str:
    spec = f"{{replicas: {replicas}, template: {TEMPLATE}}}"
    return f"kind: Deployment\nmetadata: {{name: {name}}}\nspec: {spec}\n"


BAD = [
    ("a: [1,\n", "line 2, column 1: not YAML"),
    ("kind: Pod\nkind: Pod\n", "line 2, column 1: not YAML: key 'kind' is already set"),
    ("{", "not YAML"),
    ("just a text\n", "not a Kubernetes object"),
    ("- 1\n", "not a Kubernetes object"),
    ("metadata: {name: a}\n", "kind is missing"),
    ("kind: 3\n", "kind must be a text"),
    ("kind: List\nitems: x\n", "items must be a list"),
    ("kind: Pod\nmetadata: {name: a}\n", "spec.containers: Required value"),
    ("kind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n", "spec.containers: Required value"),
    ("kind: Pod\nmetadata: {name: a}\nspec: {containers: 1}\n", "spec.containers: must be a list"),
    ("kind: Pod\nmetadata: 1\n", "metadata: must be a mapping"),
    (POD.replace("name: feed, ", ""), "metadata.name: Required value: name or generateName"),
    (POD.replace("name: app", "image: app"), "spec.containers[0].name: Required value"),
    (POD.replace("name: feed", "name: 12"), "metadata.name: must be a string"),
    (POD + "  - name: app\n", 'spec.containers[1].name: Duplicate value: "app"'),
    (
        POD + "  initContainers: [{name: app}]\n",
        'spec.containers[0].name: Duplicate value: "app"',
    ),
    (
        POD.replace("name: feed", 'name: "a\\tb"'),
        'metadata.name: Invalid value: "a\\tb": a lowercase RFC 1123 subdomain',
    ),
    (POD + "---\n" + POD, "pod trading/feed is there already"),
    (resources("{limits: {cpu: -1}}"), 'limits[cpu]: Invalid value: "-1": must be greater than or'),
    (resources("{requests: {memory: 1Gb}}"), "requests.memory: Invalid value: '1Gb': quantities"),
    (resources("{requests: {cpu: [1]}}"), "requests.cpu: must be a quantity such as 500m or 1Gi"),
    (resources("{requests: {cpu: true}}"), "not a boolean"),
    (
        resources("{requests: {cpu: 3}, limits: {cpu: 2}}"),
        'requests: Invalid value: "3": must be less than or equal to cpu limit of 2',
    ),
    (
        resources("{requests: {hugepages-2Mi: 2Mi, cpu: 1}}"),
        "Limit must be set for non overcommitable resources",
    ),
    (
        resources("{requests: {a.b/gpu: 1}, limits: {a.b/gpu: 2}}"),
        "must be equal to a.b/gpu limit of 2",
    ),
    ("kind: Deployment\nmetadata: {name: a}\n", "spec: Required value"),
    ("kind: Deployment\nmetadata: {name: a}\nspec: {}\n", "spec.template: Required value"),
    (f"kind: Deployment\nspec: {{template: {TEMPLATE}}}\n", "metadata.name: Required value"),
    ("kind: CronJob\nmetadata: {name: a}\nspec: {}\n", "spec.jobTemplate: Required value"),
    (
        f"kind: Job\nmetadata: {{name: a}}\nspec: {{parallelism: -1, template: {TEMPLATE}}}\n",
        "spec.parallelism: Invalid value: -1: must be greater than or equal to 0",
    ),
    (
        workload("a", "x"),
        "spec.replicas: must be an integer, not 'x'",
    ),
    (
        workload("a", MAX_REPLICAS + 1),
        "pods are more than can be planned",
    ),
    ("kind: List\nitems: [{kind: Pod}]\n", "items[0]: Pod without a name"),
    ("kind: List\nitems: [7]\n", "items[0]: not a Kubernetes object"),
    ('{"kind": "List", "items": [' * 9 + "]}" * 9, "lists within lists"),
    (
        POD.replace("name: feed", "name: feed, uid: u")
        + "---\n"
        + POD.replace("name: feed", "name: other, uid: u"),
        "pod trading/other has the uid of pod trading/feed (u)",
    ),
    ('{"kind": "Pod",\n "kind": "Pod"}', "line 2, column 2: not JSON: key 'kind' is already set"),
    ('{"kind": "Pod",\n "metadata" {}}', "line 2, column 13: not JSON: expecting ':' delimiter"),
    (resources('{limits: {"\\e[2J": x}}'), "limits.\\x1b[2J: Invalid value: 'x'"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_one_clear_error(write: Write, text: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifests([write(text)])
    message = str(caught.value)
    assert words in message
    assert "pods.yaml" in message
    assert "\n" not in message


def test_nothing_that_moves_a_cursor_is_repeated(write: Write) -> None:
    [note] = read_manifests([write('kind: "\\e[2J"')]).notes
    assert note.endswith("\\x1b[2J has no pods, left out")


def test_errors_name_document_and_line(write: Write) -> None:
    text = POD + "---\n# another\n\nkind: Pod\nmetadata: {name: two}\n"
    with pytest.raises(ManifestError, match=r"document 2 \(line 11\): Pod 'two': spec.containers"):
        read_manifests([write(text)])


def test_many_absurd_workloads_are_refused(write: Write) -> None:
    text = "---\n".join(workload(f"a{number}", MAX_REPLICAS) for number in range(9))
    with pytest.raises(ManifestError, match="more than can be planned"):
        read_manifests([write(text)])


FIELDS = (
    "kind",
    "metadata",
    "name",
    "namespace",
    "spec",
    "template",
    "containers",
    "initContainers",
    "resources",
    "limits",
    "requests",
    "cpu",
    "memory",
    "items",
    "replicas",
    "restartPolicy",
    "overhead",
    "annotations",
    "priority",
    "uid",
    "creationTimestamp",
    "jobTemplate",
    "parallelism",
)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(FIELDS),
                inner,
                max_size=6,
            )
        ),
        max_leaves=25,
    ),
    st.sampled_from(["Pod", "Deployment", "List", "PodList", "CronJob", "Job"]),
)
def test_any_object_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: object, kind: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    if isinstance(content, dict):
        content["kind"] = kind
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    try:
        pods = read_manifests([str(path)]).pods
    except ManifestError:
        pods = ()
    for pod in pods:
        assert pod.name
        assert all(guaranteed_cpus(pod, c) >= 0 for c in pod.all_containers)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(raw)
    try:
        said = "".join(read_manifests([str(path)]).notes)
    except ManifestError as error:
        said = str(error)
    assert "bytes.yaml: " in said


def test_misspelt_fields_are_noted_and_planned_without(write: Write) -> None:
    pod = POD.replace("resources:", "resorces:")
    template = TEMPLATE.replace("resources", "resource")
    job = (
        f"kind: Deployment\nmetadata: {{name: web}}\nspec: {{replicas: 9, template: {template}}}\n"
    )
    path = write(f"{pod}---\n{job}")
    own, templates = read_manifests([path]).notes
    assert own == (
        f"{path}: document 1 (line 1): spec.containers[0].resorces: unknown field "
        '"resorces"; did you mean "resources"?; planned without it'
    )
    assert templates.endswith(
        ': spec.template.spec.containers[0].resource: unknown field "resource"; did you mean '
        '"resources"?; planned without it'
    )


def test_annotations_are_noted_once_for_all_pods_of_a_template(write: Write) -> None:
    noted = "metadata: {annotations: {near.pinfold.dev/pot: eth0, other.example/pod: x}}, "
    template = f"{{{noted}spec: {{containers: [{{name: main}}]}}}}"
    path = write(
        f"kind: Deployment\nmetadata: {{name: web}}\nspec: {{replicas: 9, template: {template}}}\n"
    )
    (note,) = read_manifests([path]).notes
    assert note == (
        f"{path}: document 1 (line 1): spec.template.metadata.annotations.near.pinfold.dev/pot: "
        "must be near.pinfold.dev/pod or near.pinfold.dev/container.NAME; planned without it"
    )


def test_annotations_at_a_wrong_place_are_noted(write: Write) -> None:
    lends = "{lend-cpus.pinfold.dev/pod: 'true'}"
    template = f"{{metadata: {{labels: {lends}}}, spec: {{containers: [{{name: main}}]}}}}"
    path = write(
        f"kind: Deployment\nmetadata: {{name: web, labels: {{a: b}}, annotations: {lends}}}\n"
        f"spec: {{replicas: 2, template: {template}}}\n"
    )
    label, above = read_manifests([path]).notes
    where = f"{path}: document 1 (line 1)"
    assert label == (
        f"{where}: spec.template.metadata.labels.lend-cpus.pinfold.dev/pod: is an annotation, "
        "and no label: write it into metadata.annotations; planned without it"
    )
    assert above == (
        f"{where}: metadata.annotations.lend-cpus.pinfold.dev/pod: is of the Deployment, and "
        "its pods have those of spec.template.metadata; planned without it"
    )


def test_what_only_an_agent_heeds_is_noted_once_without_its_section(write: Write) -> None:
    said = "{lend-cpus.pinfold.dev/pod: 'true', irqs.pinfold.dev/container.c: allow, a: b}"
    pods = "---\n".join(
        f"kind: Pod\nmetadata: {{name: p{number}, annotations: {said}}}\n"
        "spec: {containers: [{name: c}]}\n"
        for number in range(3)
    )
    path = write(pods)
    (note,) = read_manifests([path]).notes
    assert note == (
        "annotations irqs, lend-cpus of pinfold.dev: planned without them; with a section "
        "pinfold in the configuration the plan says what would be in force"
    )
    assert read_manifests([path], own=True).notes == ()
