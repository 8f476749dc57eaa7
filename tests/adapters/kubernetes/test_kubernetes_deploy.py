"""The manifests of deploy/kubernetes say what the code does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pinfold import __version__
from pinfold.adapters.kubernetes.client import (
    APPLY_PUBLISHED,
    OPERATIONS,
    PATCH_NODE,
    Operation,
)
from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.adapters.kubernetes.pod_checks import REASON as CPU_DECISION_DIFFERS
from pinfold.adapters.kubernetes.published_node import NAMESPACE as PUBLISHED
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.node_status import node_labels, node_status
from pinfold.agent.cluster import NOT_PINNING
from pinfold.agent.node_name import NODE_NAME
from pinfold.cli import main
from pinfold.cluster.classes.publishing import RIGHTS
from pinfold.config.agent import (
    DEFAULT_FILE,
    AgentConfig,
    load_agent_config,
    pod_resources_socket,
)
from pinfold.config.section import AgentSection, as_written
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.annotations import EXCLUSIVE_CPUS
from pinfold.core.pod.pod import QOSClass
from tests.roots import ROOT
from tests.scenes.kubectl import kustomized, needs_kubectl

KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
OVERLAYS = sorted(one.parent for one in (KUBERNETES / "overlays").glob("*/config.yaml"))
"""Those that are a setting of the agent; the others add something beside it."""
CONTAINERFILE = ROOT / "deploy" / "Containerfile"


def documents(folder: Path) -> list[dict[str, Any]]:
    """The objects that a kustomization names, and nothing that it does not."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [name for name in kustomization["resources"] if name.endswith(".yaml")]
    made = [file for one in kustomization.get("configMapGenerator", ()) for file in one["files"]]
    there = {file.name for file in folder.iterdir()} - {"kustomization.yaml"}
    assert there == {*files, *made}
    return [
        document for file in files for document in yaml.safe_load_all((folder / file).read_text())
    ]


def of_kind(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [document for document in documents(folder) if document["kind"] == kind]


def daemon_set() -> dict[str, Any]:
    (found,) = of_kind(BASE, "DaemonSet")
    return found


def container() -> dict[str, Any]:
    (found,) = daemon_set()["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def config_of(file: Path, folder: Path) -> AgentConfig:
    """The agent's configuration that a ConfigMap is made of."""
    del folder
    assert file.name == DEFAULT_FILE.name
    return load_agent_config(file)


def rights(rules: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(operations: Iterable[Operation]) -> set[tuple[str, str, str]]:
    return {(one.group, one.resource, verb) for one in operations for verb in one.verbs}


def bound_rules(folder: Path) -> list[dict[str, Any]]:
    """The rules of the roles that are bound to the service account.

    Roles of one namespace are for what is published there.
    """
    rules = []
    for kind, namespace in (("ClusterRole", None), ("Role", PUBLISHED)):
        roles = {role["metadata"]["name"]: role for role in of_kind(folder, kind)}
        for binding in of_kind(folder, f"{kind}Binding"):
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": "pinfold", "namespace": "pinfold"}
            ]
            assert binding["roleRef"]["kind"] == kind
            role = roles.pop(binding["roleRef"]["name"])
            found = {one["metadata"].get("namespace") for one in (role, binding)}
            assert found == {namespace}
            rules += role["rules"]
        assert roles == {}
    return rules


def test_rights_are_the_requests_of_the_client() -> None:
    assert rights(bound_rules(BASE)) == needed(OPERATIONS[""])


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_overlays_add_the_rights_of_their_settings(overlay: Path, tmp_path: Path) -> None:
    own = config_of(overlay / "config.yaml", tmp_path).own
    switches = {
        "nodeLabels": own.cluster.node_labels,
        "nodeResourceTopology": own.cluster.node_resource_topology,
        "publishNode": own.cluster.publish_node,
        "startUpTaint": own.cluster.start_up_taint is not None,
        "computeResources": own.cluster.compute_resources,
    }
    assert switches.keys() | {""} == OPERATIONS.keys()
    wanted = {one for name, on in switches.items() if on for one in OPERATIONS[name]}
    more = RIGHTS if own.cluster.compute_resources else ()
    published = {(one.group, one.resource, verb) for one in more for verb in one.verbs}
    assert rights(bound_rules(overlay)) == needed(wanted) | published
    kustomization = yaml.safe_load((overlay / "kustomization.yaml").read_text())
    assert "../../base" in kustomization["resources"]
    # A role gives all nodes, or those of fixed names; the policy leaves one.
    restricted = kustomization.get("components", []) == ["../../components/own-node"]
    assert restricted == (PATCH_NODE in wanted)
    (made,) = kustomization["configMapGenerator"]
    assert (made["name"], made["namespace"], made["behavior"]) == ("pinfold", "pinfold", "replace")


def test_an_agent_may_change_its_own_node_only() -> None:
    policy, binding = documents(KUBERNETES / "components" / "own-node")
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    # A patch is an update to admission.
    assert (rule["resources"], rule["operations"]) == ([PATCH_NODE.resource], ["UPDATE"])
    (account,), (namespace,) = of_kind(BASE, "ServiceAccount"), of_kind(BASE, "Namespace")
    user = f"system:serviceaccount:{namespace['metadata']['name']}:{account['metadata']['name']}"
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{user}"'
    assert '"authentication.kubernetes.io/node-name"' in spec["variables"][0]["expression"]
    assert "== object.metadata.name" in spec["validations"][0]["expression"]
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }


def test_an_agent_may_publish_its_own_node_only() -> None:
    folder = KUBERNETES / "overlays" / "publish-node"
    (namespace,) = of_kind(folder, "Namespace")
    assert namespace["metadata"]["name"] == PUBLISHED
    (policy,) = of_kind(folder, "ValidatingAdmissionPolicy")
    (binding,) = of_kind(folder, "ValidatingAdmissionPolicyBinding")
    (of_nodes, _) = documents(KUBERNETES / "components" / "own-node")
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    # A server-side apply is a create or an update to admission; nothing is deleted.
    assert rule["resources"] == [APPLY_PUBLISHED.resource]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert spec["matchConditions"] == of_nodes["spec"]["matchConditions"]
    assert spec["variables"] == of_nodes["spec"]["variables"]
    (check,) = spec["validations"]
    assert f'object.metadata.namespace == "{PUBLISHED}"' in check["expression"]
    assert 'variables.node != "" && variables.node == object.metadata.name' in check["expression"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_the_taint_is_the_one_that_the_page_tells_kubelets_of(tmp_path: Path) -> None:
    overlay = KUBERNETES / "overlays" / "start-up-taint"
    key = config_of(overlay / "config.yaml", tmp_path).own.cluster.start_up_taint
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    assert f"--register-with-taints={key}=:NoSchedule" in page


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_has_the_whole_configuration_of_the_base(overlay: Path) -> None:
    # The patch replaces the text of the configuration, so what is not in it is lost.
    base, own = (
        (folder / "config.yaml").read_text().partition("\napiVersion: ")[2]
        for folder in (BASE, overlay)
    )
    assert own.startswith(base)
    assert additions(yaml.safe_load(f"a: {base}"), yaml.safe_load(f"a: {own}")) != {}


def additions(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """What ``own`` has more; that nothing of ``base`` is missing or differs is asserted."""
    more = {key: value for key, value in own.items() if key not in base}
    for key, value in base.items():
        if isinstance(value, dict):
            more.update(additions(value, own[key]))
        else:
            assert own[key] == value
    return more


def test_configurations_are_good(tmp_path: Path) -> None:
    base = config_of(BASE / "config.yaml", tmp_path)
    assert base.node.cpu_manager_policy == "static"
    assert base.own.containers.runtime == "nri"
    assert base.notes == ()
    for overlay in OVERLAYS:
        config = config_of(overlay / "config.yaml", tmp_path)
        assert config.node == base.node, "an overlay changes its own setting only"


def test_the_template_is_a_pod_that_pinfold_itself_reads(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents(BASE)))
    (pod,) = read_manifests([str(file)]).pods
    assert pod.qos is QOSClass.BURSTABLE, "the agent owns no CPU of its own"
    assert pod.priority_class_name == "system-node-critical"


def test_paths_are_those_of_the_configuration(tmp_path: Path) -> None:
    own = config_of(BASE / "config.yaml", tmp_path).own
    spec = daemon_set()["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert volumes.keys() == mounts.keys()
    hosts = {
        name: (volume["hostPath"]["path"], mounts[name].get("readOnly", False))
        for name, volume in volumes.items()
        if "hostPath" in volume
    }
    assert hosts == {
        "nri": (str(Path(own.kubelet.nri_socket).parent), False),
        "runtime": (
            str(Path((own.containers.runtime_endpoint or "").removeprefix("unix://")).parent),
            False,
        ),
        "cgroups": ("/sys/fs/cgroup", False),
        "sys": ("/sys/devices", True),
        "record": (own.record.state_dir, False),
        "kubelet": (str(Path(own.kubelet.kubelet_state_file).parent), True),
        "socket": (str(Path(own.api.socket).parent), False),
    }
    # A socket can be used where its folder cannot be written.
    assert Path(own.kubelet.kubelet_pod_resources).is_relative_to(hosts["kubelet"][0])
    # One path in the pod and on the node, so that messages name what is there.
    assert all(mounts[name]["mountPath"] == path for name, (path, _) in hosts.items())
    assert mounts["configuration"]["mountPath"] == str(DEFAULT_FILE.parent)
    sockets = [
        pod_resources_socket(config_of(overlay / "config.yaml", tmp_path).own)
        for overlay in OVERLAYS
    ]
    assert set(sockets) == {Path(own.record.state_dir, "pod-resources", "pinfold.sock")}
    assert own.api.socket == "/run/pinfold/pinfold.sock", "where the probes, as root, look"


def test_commands_are_those_of_the_program() -> None:
    args = container()["args"]
    assert args == ["agent", "--config", str(DEFAULT_FILE)]
    with click.Context(main) as context:
        agent = main.get_command(context, args[0])
        assert agent is not None
        assert "--config" in {name for parameter in agent.params for name in parameter.opts}
        status = main.get_command(context, "status")
        assert status is not None
        assert {"-o", "json", "--ready"} <= {
            *(name for parameter in status.params for name in parameter.opts),
            *next(p.type.choices for p in status.params if isinstance(p.type, click.Choice)),
        }
    probe = container()["livenessProbe"]["exec"]["command"]
    assert probe == ["python", "-m", "pinfold", "status", "-o", "json"]
    probe = container()["readinessProbe"]["exec"]["command"]
    assert probe == ["python", "-m", "pinfold", "status", "--ready"]
    names = [variable["name"] for variable in container()["env"]]
    assert names == [NODE_NAME]


def test_the_pod_has_no_more_power_than_it_uses() -> None:
    spec = daemon_set()["spec"]["template"]["spec"]
    context = container()["securityContext"]
    assert spec["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & spec.keys()
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "SYS_NICE"]}
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert "privileged" not in context
    assert "ports" not in container()


def test_selectors_and_names_agree() -> None:
    spec = daemon_set()["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (account,) = of_kind(BASE, "ServiceAccount")
    assert spec["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    (namespace,) = of_kind(BASE, "Namespace")
    assert kustomization["namespace"] == namespace["metadata"]["name"] == "pinfold"
    assert kustomization["images"][0]["name"] == container()["image"]
    (configuration,) = kustomization["configMapGenerator"]
    volume = spec["template"]["spec"]["volumes"][0]
    assert volume["configMap"]["name"] == configuration["name"]


def test_a_node_that_has_the_image_needs_no_registry() -> None:
    assert container()["imagePullPolicy"] == "IfNotPresent"


def test_the_image_is_that_of_this_version() -> None:
    # A tag that stays, as "latest", would keep nodes at the image that they have.
    for folder in (BASE, KUBERNETES / "quota" / "base", KUBERNETES / "serve-classes" / "base"):
        (image,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["images"]
        assert image["newTag"] == __version__, folder
    pages = [ROOT / "docs" / "how-to" / one for one in ("install.md", "kubernetes.md")]
    told = "".join(one.read_text() for one in (*pages, CONTAINERFILE))
    assert set(re.findall(r"registry\.example/pinfold:([\w.]+)", told)) == {__version__}
    assert set(re.findall(r"--build-arg VERSION=(\S+)", told)) == {__version__}


@needs_kubectl
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda path: path.name)
def test_a_changed_configuration_starts_the_pods_anew(folder: Path, tmp_path: Path) -> None:
    names = []
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    copy = tmp_path / "kubernetes" / folder.relative_to(KUBERNETES)
    for change in ("", "# changed\n"):
        with (copy / "config.yaml").open("a") as file:
            file.write(change)
        found = kustomized(copy)
        volumes = found["DaemonSet", "pinfold"]["spec"]["template"]["spec"]["volumes"]
        name = volumes[0]["configMap"]["name"]
        made = found["ConfigMap", name]
        assert made["metadata"]["namespace"] == "pinfold"
        assert made["data"] == {DEFAULT_FILE.name: (copy / "config.yaml").read_text()}
        names.append(name)
    assert names[0] != names[1]
    assert all(name.startswith("pinfold-") for name in names)
    assert sum(kind == "ConfigMap" for kind, _ in found) == 1


def test_the_page_takes_everything_away_again() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    machine = parse_short_form("1s1c1t")
    view = kubelet_view(machine)
    node = build_node(machine, NodeConfig(), view=view)
    state = empty_state(node, view.topology.cpus)
    labels = node_labels(node_status(machine, view, NodeConfig(), node, state))
    (line,) = re.findall(r"^\$ kubectl label nodes --all (.*)$", page, re.MULTILINE)
    assert sorted(line.split()) == sorted(f"{label}-" for label in labels)
    assert "kubectl delete noderesourcetopologies" in page


def test_the_image_is_built_of_locked_requirements() -> None:
    text = CONTAINERFILE.read_text()
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
        for name in line.split()
    }
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {"src", "pyproject.toml", "hatch_build.py", "requirements.txt"} <= copied
    instructions = re.sub(r"\\\n\s*", "", text)
    installs = re.findall(r"pip install (.*?)(?: &&|$)", instructions, re.MULTILINE)
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install, install
    assert "-e " not in text


def test_every_setting_of_the_cluster_is_one_of_the_section() -> None:
    names = set(as_written(AgentSection()))
    assert OPERATIONS.keys() - {""} <= names


def test_the_how_to_page_names_what_is_there() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    assert f'{EXCLUSIVE_CPUS.key()}: "false"' in page
    assert f'{EXCLUSIVE_CPUS.key("container.sidecar")}: "false"' in page
    for reason in (NOT_PINNING, CPU_DECISION_DIFFERS):
        assert f"`{reason}`" in page
    for capability in container()["securityContext"]["capabilities"]["add"]:
        assert f"`{capability}`" in page
    for overlay in OVERLAYS:
        assert f"| `{overlay.name}` |" in page
    paths = re.findall(r"deploy/[\w./-]+\w", page)
    assert len(paths) > 4
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for setting in OPERATIONS.keys() - {""}:
        assert f"`{setting}`" in page
