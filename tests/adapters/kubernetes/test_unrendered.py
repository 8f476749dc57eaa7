"""Charts, templates and kustomizations that are given as if they were manifests; odd files."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.adapters.kubernetes.files import ManifestError
from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.adapters.kubernetes.templates import unrendered_path
from tests.roots import ROOT

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: feed}\nspec: {containers: [{name: c}]}\n"
RENDER = "helm template CHART > all.yaml"


def problem(*paths: Path) -> str:
    with pytest.raises(ManifestError) as caught:
        read_manifests([str(path) for path in paths])
    return str(caught.value)


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (POD.replace("feed", "{{ .Values.name }}"), "line 3"),
        (POD.replace("{name: feed}", "\n  name: {{ .Release.Name }}-feed"), "line 4"),
        ("{{- if .Values.on }}\n" + POD + "{{- end }}\n", "line 1"),
        (POD + "{{- end }}\n", "line "),
        ('kind: Pod\nmetadata:\n  {{- include "x" . | nindent 2 }}\nspec:\n', "line 3"),
        (POD.replace("feed", "'{{ .Values.name }}'"), "document 1"),
    ],
)
def test_a_template_is_to_be_rendered(tmp_path: Path, text: str, place: str) -> None:
    told = problem(file(tmp_path, text))
    assert told.startswith(f"{tmp_path}/file.yaml: {place}")
    assert told.count(RENDER) == 1


@pytest.mark.parametrize(
    "text",
    [
        'args: ["{{ $labels.pod }}"]\nb: c: d\n' * 1,
        "a: '{{inputs.parameters.x}}'\n\n\n\n\nb: [\n",
        "a: 1\nb: {{}: c\n",
    ],
)
def test_braces_elsewhere_make_no_template(tmp_path: Path, text: str) -> None:
    lines = text.replace("b: c", "\n\n\nb: c")
    assert RENDER not in problem(file(tmp_path, lines))


def test_a_pod_with_braces_in_its_texts_is_read(tmp_path: Path) -> None:
    text = POD.replace("{name: c}", "{name: c, args: ['{{ .Values.x }}']}")
    assert len(read_manifests([str(file(tmp_path, text))]).pods) == 1


def test_a_chart_is_to_be_rendered(tmp_path: Path) -> None:
    templates = tmp_path / "chart" / "templates"
    templates.mkdir(parents=True)
    chart = templates.parent
    (chart / "Chart.yaml").write_text("name: feed\n")
    file(templates, POD)
    for path in (chart, templates, chart / "Chart.yaml"):
        assert problem(path).endswith(f"helm template {chart} > all.yaml")
    assert len(read_manifests([str(templates / "file.yaml")]).pods) == 1


def test_the_root_of_all_folders_is_no_chart() -> None:
    assert unrendered_path(Path("/")) == ""


@pytest.mark.parametrize("name", ["kustomization.yaml", "kustomization.yml", "Kustomization"])
def test_a_kustomization_is_to_be_built(tmp_path: Path, name: str) -> None:
    file(tmp_path, POD)
    (tmp_path / name).write_text("resources: [file.yaml]\n")
    for path in (tmp_path, tmp_path / name):
        assert problem(path).endswith(f"kubectl kustomize {tmp_path} > all.yaml")
    assert len(read_manifests([str(tmp_path / "file.yaml")]).pods) == 1


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(ManifestError, match=r"'': an empty name is no file"):
        read_manifests([""])


def test_a_folder_without_manifests_names_one_below(tmp_path: Path) -> None:
    assert problem(tmp_path).endswith("no *.yaml, *.yml or *.json file in this folder")
    (tmp_path / "below").mkdir()
    assert problem(tmp_path).endswith(f"are not looked into: name them, as {tmp_path}/below")


@pytest.mark.parametrize("command", ["plan", "apply", "convert", "readiness"])
def test_nothing_on_standard_input_is_told(command: str, tmp_path: Path) -> None:
    words = ("--machine", "1s4c1t") if command == "plan" else ()
    place = ("--socket", str(tmp_path / "s")) if command == "apply" else ()
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", command, *words, *place, "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: -: nothing came on standard input; does the command before the pipe print "
        "manifests?\n"
    )


@pytest.mark.parametrize("code", ["utf-8-sig", "utf-16", "utf-32"])
def test_marked_texts_are_read(tmp_path: Path, code: str) -> None:
    text = POD.replace("feed", "feed").replace("\n", "\r\n")
    assert [pod.name for pod in read_manifests([str(file(tmp_path, text.encode(code)))]).pods] == [
        "feed"
    ]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (POD.encode("utf-16-le"), "a NUL character; save the file as UTF-8 text"),
        (POD.replace("feed", "h\xf6he").encode("latin-1"), "line 3: not UTF-8 text (byte 43)"),
        (b"\xff\xfea", "line 1: not UTF-16 text"),
        (gzip.compress(POD.encode(), mtime=0), "compressed; unpack it first (gunzip)"),
    ],
)
def test_what_is_no_text_is_told_with_its_line(tmp_path: Path, raw: bytes, told: str) -> None:
    assert told in problem(file(tmp_path, raw))


def test_a_template_is_where_the_value_is_and_not_in_the_name_of_a_file(tmp_path: Path) -> None:
    place = tmp_path / "{{ .Values.name }}.yaml"
    place.write_text(POD.replace("name: c", "name: C"))
    assert RENDER not in problem(place)
    place.write_text(POD.replace("name: c", "name: '{{ .Values.name }}'"))
    with pytest.raises(ManifestError) as caught:
        read_manifests([place])
    error = caught.value
    assert RENDER in error.remedy
    assert str(error) == f"{error.where}: {error.problem}; {error.remedy}"
    assert RENDER not in problem(tmp_path / "{{ .Values.none }}.yaml")
