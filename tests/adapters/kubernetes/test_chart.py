"""The chart of deploy/kubernetes says what the kustomizations beside it say; by the real helm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from pinfold import __version__
from pinfold.cli.commands.serve import serve
from pinfold.config.agent import load_agent_config
from tests.scenes.chart import CHART, Objects, helm, needs_helm, rendered
from tests.scenes.kubectl import kustomized, needs_kubectl

OVERLAYS = {
    "nodeLabels": "node-labels",
    "nodeResourceTopology": "node-resource-topology",
    "publishNode": "publish-node",
    "startUpTaint": "start-up-taint",
    "computeResources": "compute-resources",
}
"""The value that has an overlay's rights and settings, for each overlay with rights."""

pytestmark = needs_helm

OBJECTS = frozenset({"image", "config", "page", "podAnnotations", "podLabels"})
"""Values of which the templates take a part."""


def comparable(objects: Objects) -> Objects:
    """Without what either way of installing adds by itself, and the configuration as it is read."""
    found: Objects = {}
    for (kind, given), one in objects.items():
        if kind == "Namespace":
            continue  # helm makes it, or there is one
        name = re.sub(r"-[a-z0-9]{10}$", "", given) if kind == "ConfigMap" else given
        metadata = {**one["metadata"], "name": name}
        metadata.pop("labels", None)
        metadata.pop("annotations", None)
        found[kind, name] = {**one, "metadata": metadata}
        if kind == "ConfigMap":
            found[kind, name]["data"] = yaml.safe_load(one["data"]["config.yaml"])
        if kind == "DaemonSet":
            template = one["spec"]["template"]
            template["metadata"].pop("annotations", None)
            for volume in template["spec"]["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = name
    return found


def test_lint_is_content(tmp_path: Path) -> None:
    said = helm(tmp_path, "lint", "--strict", str(CHART))
    assert "WARNING" not in said, said


@needs_kubectl
@pytest.mark.parametrize("value", [None, *OVERLAYS])
def test_chart_and_kustomization_install_the_same(tmp_path: Path, value: str | None) -> None:
    if value is None:
        folder, settings = CHART / "base", []
    else:
        folder, settings = CHART / "overlays" / OVERLAYS[value], [f"{value}=true"]
    expected = comparable(kustomized(folder))
    if value == "computeResources":
        expected |= comparable(kustomized(CHART / "classes"))
    assert comparable(rendered(tmp_path, *settings)) == expected


@needs_kubectl
def test_the_page_is_the_same_container(tmp_path: Path) -> None:
    expected = comparable(kustomized(CHART / "overlays" / "page"))
    assert comparable(rendered(tmp_path, 'page={"enabled":true}')) == expected
    agent, page = expected["DaemonSet", "pinfold"]["spec"]["template"]["spec"]["containers"]
    assert (agent["name"], page["name"]) == ("agent", "page")
    without = comparable(kustomized(CHART / "base"))
    for one in (expected, without):
        pod = one["DaemonSet", "pinfold"]["spec"]["template"]["spec"]
        pod["containers"], pod["volumes"] = pod["containers"][:1], pod["volumes"][:9]
    assert expected == without, "nothing of the agent is otherwise"


def test_the_page_has_few_rights(tmp_path: Path) -> None:
    """This needs no kubectl; the words are those that the command takes."""
    found = rendered(
        tmp_path,
        'page={"enabled":true,"resources":{"limits":{"memory":"1Gi"}}}',
        'resources={"limits":{"memory":"2Gi"}}',
        'image={"repository":"images.example/p","tag":"7"}',
    )
    pod = found["DaemonSet", "pinfold"]["spec"]["template"]["spec"]
    agent, page = pod["containers"]
    assert [one["image"] for one in (agent, page)] == ["images.example/p:7"] * 2
    assert agent["resources"] == {"limits": {"memory": "2Gi"}}
    assert page["resources"] == {"limits": {"memory": "1Gi"}}
    assert page["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert page["securityContext"]["readOnlyRootFilesystem"]
    mounts = {one["name"]: one for one in page["volumeMounts"]}
    assert all(one["readOnly"] for one in mounts.values())
    (secret,) = (one["secret"] for one in pod["volumes"] if one["name"] == "page-token")
    assert secret["optional"]
    assert secret["defaultMode"] == 0o400
    assert serve.make_context("serve", page["args"][1:]).params["listen"] == "127.0.0.1:7468"
    assert "kind: Secret" not in (CHART / "components" / "page" / "patch.yaml").read_text()


def test_each_file_of_an_overlay_is_in_the_chart(tmp_path: Path) -> None:
    """As the files are; this needs no kubectl."""
    every = comparable(rendered(tmp_path, *(f"{value}=true" for value in OVERLAYS)))
    files = [CHART / "base" / "service-account.yaml", *(CHART / "classes").glob("*.yaml")]
    files += [*CHART.glob("overlays/*/rights.yaml"), *CHART.glob("components/*/policy.yaml")]
    files += CHART.glob("overlays/*/policy.yaml")
    for file in files:
        for one in yaml.safe_load_all(file.read_text()):
            if one["kind"] not in {"Kustomization", "ServiceAccount"}:
                assert every[one["kind"], one["metadata"]["name"]] == one, file
    config = every["ConfigMap", "pinfold"]["data"]["pinfold"]
    for overlay in OVERLAYS.values():
        said = yaml.safe_load((CHART / "overlays" / overlay / "config.yaml").read_text())
        assert said["pinfold"].items() <= config.items(), overlay


def test_values_reach_the_pods(tmp_path: Path) -> None:
    found = rendered(
        tmp_path,
        'image={"repository":"images.example/p","tag":"","pullSecrets":["s"]}',
        'config={"reservedSystemCPUs":"0-1","pinfold":{"runtime":"nri","nodeLabels":true}}',
        'runtimeFolder="/var/run/crio"',
        'resources={"limits":{"memory":"1Gi"}}',
        'nodeSelector={"pool":"fast"}',
        'tolerations=[{"key":"a","operator":"Exists"}]',
        'podLabels={"team":"x","app.kubernetes.io/name":"other"}',
        'maxUnavailable="10%"',
    )
    agent = found["DaemonSet", "pinfold"]["spec"]
    template, (container,) = agent["template"], agent["template"]["spec"]["containers"]
    assert container["image"] == f"images.example/p:{__version__}"
    assert container["resources"] == {"limits": {"memory": "1Gi"}}
    assert {"name": "runtime", "mountPath": "/var/run/crio"} in container["volumeMounts"]
    paths = {
        one["name"]: one.get("hostPath", {}).get("path") for one in template["spec"]["volumes"]
    }
    assert paths["runtime"] == "/var/run/crio"
    assert template["spec"]["imagePullSecrets"] == [{"name": "s"}]
    assert template["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "fast"}
    assert template["spec"]["tolerations"] == [{"key": "a", "operator": "Exists"}]
    # What the selector looks for is nobody's to change.
    assert template["metadata"]["labels"]["team"] == "x"
    assert agent["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert agent["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap", "pinfold"]["data"]["config.yaml"])
    config = load_agent_config(file)
    assert str(config.node.reserved_system_cpus) == "0-1"


def test_a_changed_configuration_starts_the_pods_anew(tmp_path: Path) -> None:
    def checksum(*settings: str) -> str:
        template = rendered(tmp_path, *settings)["DaemonSet", "pinfold"]["spec"]["template"]
        found = template["metadata"]["annotations"]["checksum/config"]
        assert isinstance(found, str)
        return found

    assert checksum() == checksum('podLabels={"a":"b"}')
    assert len({checksum(), checksum("nodeLabels=true"), checksum('config={"a":1}')}) == 3


def test_another_namespace_is_everywhere(tmp_path: Path) -> None:
    settings = (f"{value}=true" for value in OVERLAYS)
    found = rendered(tmp_path, *settings, namespace="elsewhere")
    text = json.dumps(list(found.values()))
    assert "serviceaccount:pinfold:" not in text
    assert '"namespace": "pinfold"' not in text
    subjects = [one for found_one in found.values() for one in found_one.get("subjects", ())]
    assert {one["namespace"] for one in subjects} == {"elsewhere"}
    kinds = [one for (kind, _), one in found.items() if kind == "CustomResourceDefinition"]
    assert kinds
    for kind in kinds:
        assert kind["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("nodeLables=true", "nodeLables"),
        ('nodeLabels="yes"', "nodeLabels"),
        ('image={"repository":""}', "repository"),
        ("maxUnavailable=0", "maxUnavailable"),
        ('page={"enabled":1}', "enabled"),
        ('page={"token":"x"}', "token"),
        ('runtimeFolder="run"', "runtimeFolder"),
        *((f"{name}=null", f"{name} is required") for name in sorted(OBJECTS)),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, setting: str, named: str) -> None:
    said = helm(tmp_path, "template", "x", str(CHART), "--set-json", setting, status=1)
    assert named in said
    assert "don't meet the specifications of the schema" in said


def test_no_null_is_an_error_of_a_template(tmp_path: Path) -> None:
    """Helm takes null for a value that is left out, also of the chart's own values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name in sorted(values.keys() - OBJECTS):
        helm(tmp_path, "template", "x", str(CHART), "--set", f"{name}=null")


def test_every_value_is_described(tmp_path: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}
    assert values["image"].keys() == schema["properties"]["image"]["properties"].keys()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert values["image"]["tag"] == ""
    packed = helm(tmp_path, "package", str(CHART), "--destination", str(tmp_path))
    assert "Successfully" in packed
