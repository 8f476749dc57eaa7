"""The manifests of deploy/kubernetes/serve-classes say what the code does."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.agent.replica.classes import PATH
from pinfold.agent.replica.cluster_resources import read_cluster_resources
from pinfold.cluster.certificates.keeper import Names
from pinfold.cluster.classes.rights import RIGHTS
from pinfold.core.classes.bound import KEY_PREFIX, bound_key
from pinfold.core.classes.names import CLASS_DOMAIN
from pinfold.web.webhook.app import DEADLINE
from tests.roots import ROOT
from tests.scenes.cel_rules import evaluated
from tests.scenes.deployed import documents, granted, listed, served, the, written_names
from tests.scenes.kubectl import kustomized, needs_kubectl

FOLDER = ROOT / "deploy" / "kubernetes" / "serve-classes"
OVERLAYS = sorted((FOLDER / "overlays").iterdir())
NAME = "pinfold-classes"
EXTENDER = f"{NAME}-extender"
NAMES = Names(NAME, f"{NAME}-certificates", NAME, NAME, others=(EXTENDER,))


@pytest.mark.parametrize("component", RIGHTS)
def test_rights_are_the_requests_that_are_made(component: str) -> None:
    folder = FOLDER / "components" / component if component else FOLDER / "base"
    assert granted(folder, NAME) == listed(RIGHTS[component])


def test_names_of_what_may_be_written_are_those_of_the_program() -> None:
    assert written_names(FOLDER) == {
        ("leases", NAMES.service),
        ("endpointslices", EXTENDER),
        ("secrets", NAMES.secret),
        ("mutatingwebhookconfigurations", NAMES.configuration),
    }
    configuration = the(FOLDER / "base", "MutatingWebhookConfiguration")
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    assert configuration["metadata"]["name"] == NAMES.configuration
    assert (service["name"], service["namespace"]) == (NAMES.service, NAMES.namespace)
    assert service["path"] == PATH
    (certificate,) = [
        one
        for one in documents(FOLDER / "components" / "cert-manager")
        if one["spec"].get("secretName") == NAMES.secret
    ]
    assert {f"{NAME}.{NAME}.svc", f"{EXTENDER}.{NAME}.svc"} <= set(certificate["spec"]["dnsNames"])
    assert set(certificate["spec"]["dnsNames"]) <= set(NAMES.served)


def test_the_webhook_is_closed_and_asked_about_new_pods() -> None:
    (webhook,) = the(FOLDER / "base", "MutatingWebhookConfiguration")["webhooks"]
    assert webhook["admissionReviewVersions"] == ["v1"]
    assert webhook["sideEffects"] == "None"
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert webhook["timeoutSeconds"] > DEADLINE
    (left_out,) = webhook["namespaceSelector"]["matchExpressions"]
    assert (left_out["operator"], left_out["values"]) == ("NotIn", ["kube-system", NAME])
    (rule,) = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])


def is_asked(pod: dict[str, Any]) -> bool:
    """Whether an API server asks about a pod that is created."""
    (webhook,) = the(FOLDER / "base", "MutatingWebhookConfiguration")["webhooks"]
    return all(evaluated(one["expression"], object=pod) for one in webhook["matchConditions"])


RESOURCES = st.none() | st.dictionaries(
    st.sampled_from(["cpu", f"{CLASS_DOMAIN}gold", "nvidia.com/gpu", "xclass.pinfold.dev/a"]),
    st.just("1"),
    max_size=2,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    def container() -> dict[str, Any]:
        parts = {"limits": draw(RESOURCES), "requests": draw(RESOURCES)}
        resources = {part: held for part, held in parts.items() if held is not None}
        return {"name": "a", **({"resources": resources} if draw(st.booleans()) else {})}

    spec = {"containers": [container() for _ in range(draw(st.integers(1, 2)))]}
    if draw(st.booleans()):
        spec["initContainers"] = [container()]
    metadata: dict[str, Any] = {"name": "a"}
    if draw(st.booleans()):
        keys = st.sampled_from(["a/b", bound_key("a"), "exclusive-cpus.pinfold.dev/pod"])
        metadata["annotations"] = draw(st.dictionaries(keys, st.just(""), max_size=2))
    return {"metadata": metadata, "spec": spec}


@given(pods())
def test_it_is_asked_about_pods_with_classes_or_bindings_and_no_others(pod: dict[str, Any]) -> None:
    names = {
        name
        for key in ("containers", "initContainers")
        for one in pod["spec"].get(key, ())
        for held in one.get("resources", {}).values()
        for name in held
    }
    annotations = pod["metadata"].get("annotations", {})
    wanted = any(name.startswith(CLASS_DOMAIN) for name in names) or any(
        key.startswith(KEY_PREFIX) for key in annotations
    )
    assert is_asked(pod) == wanted


def is_denied(old: dict[str, str] | None, new: dict[str, str] | None) -> bool:
    """Whether the policy refuses a change of annotations."""
    policy = the(FOLDER / "base", "ValidatingAdmissionPolicy")["spec"]
    seen = {
        name: {"metadata": {} if held is None else {"annotations": held}}
        for name, held in (("object", new), ("oldObject", old))
    }
    if not all(evaluated(one["expression"], **seen) for one in policy["matchConditions"]):
        return False
    return not all(evaluated(one["expression"], **seen) for one in policy["validations"])


ANNOTATIONS = st.none() | st.dictionaries(
    st.sampled_from(["a/b", bound_key("x"), bound_key("y")]), st.sampled_from("12"), max_size=3
)


@given(ANNOTATIONS, ANNOTATIONS)
def test_a_binding_stays_as_it_is(old: dict[str, str] | None, new: dict[str, str] | None) -> None:
    def binding(held: dict[str, str] | None) -> dict[str, str]:
        return {key: one for key, one in (held or {}).items() if key.startswith(KEY_PREFIX)}

    assert is_denied(old, new) == (binding(old) != binding(new))


def test_the_policy_is_in_force_for_pods_and_their_status() -> None:
    policy = the(FOLDER / "base", "ValidatingAdmissionPolicy")
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["pods", "pods/status"])
    binding = the(FOLDER / "base", "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }


def test_ports_and_probes_are_those_of_the_program() -> None:
    options = served(FOLDER)
    deployment = the(FOLDER / "base", "Deployment")
    assert deployment["metadata"]["name"] == NAME
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert options["--extender-listen"].default == f":{ports['extender']}"
    assert options["--extender-address"].envvar in {one["name"] for one in container["env"]}
    services = {
        one["metadata"]["name"]: one
        for one in documents(FOLDER / "base")
        if one["kind"] == "Service"
    }
    # The one of the extender selects nothing: the replica that leads says where it leads.
    assert "selector" not in services[EXTENDER]["spec"]
    (port,) = services[EXTENDER]["spec"]["ports"]
    assert (port["name"], port["targetPort"]) == ("extender", ports["extender"])
    (policy,) = the(FOLDER / "base", "NetworkPolicy")["spec"]["ingress"]
    assert {one["port"] for one in policy["ports"]} == set(ports)


def test_it_has_no_more_power_than_it_uses() -> None:
    spec = the(FOLDER / "base", "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_has_all_of_it(overlay: Path, tmp_path: Path) -> None:
    found = kustomized(overlay)
    definitions = [name for kind, name in found if kind == "CustomResourceDefinition"]
    assert sorted(definitions) == ["computeresources.pinfold.dev", "resourceclasses.pinfold.dev"]
    makes_own = overlay.name == "own-certificates"
    template = found["Deployment", NAME]["spec"]["template"]["spec"]
    (volume,) = template["volumes"]
    assert ("--make-certificates" in template["containers"][0]["args"]) == makes_own
    assert ("emptyDir" in volume) == makes_own
    assert (("Certificate", NAME) in found) == (not makes_own)
    annotations = found["MutatingWebhookConfiguration", NAME]["metadata"].get("annotations", {})
    assert ("cert-manager.io/inject-ca-from" in annotations) == (not makes_own)
    namespaced = {"Deployment", "Service", "Role", "PodDisruptionBudget", "Certificate", "Issuer"}
    assert {
        one["metadata"]["namespace"] for (kind, _), one in found.items() if kind in namespaced
    } == {NAME}
    selector = found["Service", NAME]["spec"]["selector"]
    assert selector.items() <= (
        found["Deployment", NAME]["spec"]["template"]["metadata"]["labels"].items()
    )
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(copy.deepcopy(list(found.values()))))
    assert len(read_manifests([str(file)]).pods) == 2


@needs_kubectl
def test_a_file_of_what_belongs_to_no_node_is_mounted_where_it_is_read(tmp_path: Path) -> None:
    shutil.copytree(FOLDER.parent, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "serve-classes"
    kustomization = folder / "overlays" / "own-certificates" / "kustomization.yaml"
    with kustomization.open("a") as file:
        file.write("  - ../../components/cluster-resources\n")
    found = kustomized(kustomization.parent)
    spec = found["Deployment", NAME]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (option,) = [one for one in container["args"] if one.startswith("--cluster-resources=")]
    place = Path(option.partition("=")[2])
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "cluster-resources"]
    # As a folder: a single file that is mounted never changes.
    assert Path(mount["mountPath"]) == place.parent
    assert "subPath" not in mount
    (volume,) = [one for one in spec["volumes"] if one["name"] == "cluster-resources"]
    made = found["ConfigMap", volume["configMap"]["name"]]
    assert made["metadata"]["namespace"] == NAME
    assert list(made["data"]) == [place.name]
    component = folder / "components" / "cluster-resources"
    assert read_cluster_resources(component / place.name) == ()
