"""The definitions of deploy/kubernetes/classes accept what the program reads, and nothing else."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator

from pinfold.core.classes.api import (
    API_VERSION,
    ClassError,
    class_from_api,
    compute_resource_from_api,
)
from pinfold.core.classes.compute_resource import compute_resource_name
from tests.roots import ROOT
from tests.scenes.cel_rules import evaluated
from tests.scenes.kubectl import kustomized, needs_kubectl

FOLDER = ROOT / "deploy" / "kubernetes" / "classes"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def schema_of(name: str) -> dict[str, Any]:
    ((version,),) = [one["spec"]["versions"] for one in documents(name)]
    schema = version["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


CLASS = schema_of("resource-class.yaml")
RESOURCE = schema_of("compute-resource.yaml")


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """As the API server's strict validation has it: no field that is not described."""
    made: dict[str, Any] = dict(schema)
    if "properties" in made:
        made["properties"] = {key: strict(one) for key, one in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
    if "items" in made:
        made["items"] = strict(schema["items"])
    return made


def rules(
    schema: Mapping[str, Any], value: Any, old: Any = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each rule of the schema with what it sees; those of changes only where there is a before."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield rule["rule"], {"self": value}
        elif old is not None:
            yield rule["rule"], {"self": value, "oldSelf": old}
    for key, one in schema.get("properties", {}).items():
        if isinstance(value, dict) and key in value:
            yield from rules(one, value[key], None if old is None else old.get(key))
    for item in value if isinstance(value, list) and "items" in schema else ():
        yield from rules(schema["items"], item)


def accepted(schema: dict[str, Any], value: dict[str, Any], old: Any = None) -> bool:
    bare = copy.deepcopy(schema)
    bare["properties"]["metadata"] = {"type": "object", "additionalProperties": True}
    if not Draft4Validator(strict(bare)).is_valid(value):
        return False
    return all(evaluated(rule, **seen) for rule, seen in rules(schema, value, old))


def every_schema(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, dict(schema)
    for key, one in schema.get("properties", {}).items():
        yield from every_schema(one, f"{path}.{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from every_schema(schema[key], f"{path}[]")


@pytest.mark.parametrize("name", ["resource-class.yaml", "compute-resource.yaml"])
def test_schemas_are_structural(name: str) -> None:
    (definition,) = documents(name)
    spec = definition["spec"]
    (version,) = spec["versions"]
    names = spec["names"]
    assert f"{spec['group']}/{version['name']}" == API_VERSION
    assert definition["metadata"]["name"] == f"{names['plural']}.{spec['group']}"
    assert names["singular"] == names["kind"].lower()
    assert names["plural"].startswith(names["singular"])
    for path, schema in every_schema(schema_of(name)):
        anything = schema.get("x-kubernetes-int-or-string", False)
        assert ("type" in schema) != anything, path
        # What has no bound makes rules too dear for an API server to take.
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if schema.get("x-kubernetes-validations") or schema.get("pattern"):
            assert schema["type"] == "object" or "maxLength" in schema, path
    for column in version["additionalPrinterColumns"]:
        holder = schema_of(name)
        for key, condition in re.findall(r"\.(\w+)(\[\?\(@\.type==.*?\)\])?", column["jsonPath"]):
            holder = holder["properties"].get(key, {}) if holder != {"type": "object"} else holder
            holder = holder["items"] if condition else holder
        assert holder, column


TEXTS = st.sampled_from(["8G", "nvidia-gpu", "", "x y", "30G"])
REQUIREMENTS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["Kind", "a.b/memory", "x y", ""]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "Gt", "LtEq", "Eq"]),
    },
    optional={"values": st.lists(TEXTS, max_size=2)},
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "labelSelector": st.lists(
            st.fixed_dictionaries(
                {}, optional={"matchExpressions": st.lists(REQUIREMENTS, max_size=2)}
            ),
            max_size=2,
        ),
        "priority": st.sampled_from([0, 5, -1, 10**9 + 1, "high"]),
        "provisionConfig": st.fixed_dictionaries(
            {},
            optional={
                "resourceType": st.sampled_from(["NODELEVEL", "CLUSTERLEVEL", "OTHER"]),
                "provisionSeconds": st.sampled_from([0, 60, -1]),
            },
        ),
        "surplus": st.just(1),
    },
)
NAMES = st.sampled_from(["gpu-gold", "memory", "hugepages-2Mi", "requests.cpu", "n" * 63, "n" * 64])


def readable(read: Any, value: dict[str, Any]) -> bool:
    try:
        read(value)
    except ClassError:
        return False
    return True


@given(NAMES, SPECS)
def test_a_cluster_takes_the_classes_that_the_program_reads(
    name: str, spec: dict[str, Any]
) -> None:
    value = {"kind": "ResourceClass", "metadata": {"name": name}, "spec": spec}
    # The API server itself refuses names that are no subdomains.
    wrong_anyway = name == "hugepages-2Mi"
    assert accepted(CLASS, value) == readable(class_from_api, value) or wrong_anyway
    assert not wrong_anyway or not readable(class_from_api, value)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "nodeName": st.sampled_from(["node-1", "a.b", "No", "-a"]),
            "resourceName": st.sampled_from(["nvidia.com/gpu", "cpu", "a/b/c", ""]),
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["1", 1])),
            "devices": st.lists(st.sampled_from(["gpu-0", 1]), max_size=2),
            "surplus": st.just(1),
        },
    )
)
def test_a_cluster_takes_the_compute_resources_that_the_program_reads(spec: dict[str, Any]) -> None:
    value = {"kind": "ComputeResource", "metadata": {"name": "a"}, "spec": spec}
    assert accepted(RESOURCE, value) == readable(compute_resource_from_api, value)


def test_what_a_compute_resource_is_stays() -> None:
    def changed(**spec: Any) -> dict[str, Any]:
        return {"spec": {"nodeName": "n", "resourceName": "a.b/c", "properties": {"k": "v"}} | spec}

    before = changed()
    assert accepted(RESOURCE, changed(devices=["d0"]), before)
    for other in ({"nodeName": "m"}, {"resourceName": "a.b/d"}, {"properties": {"k": "w"}}):
        assert not accepted(RESOURCE, changed(**other), before)
    assert not accepted(RESOURCE, {"spec": {"nodeName": "n", "resourceName": "a.b/c"}}, before)


POLICY, BINDING = documents("policy.yaml")


def allowed(node: str | None, new: dict[str, Any] | None, old: dict[str, Any] | None) -> bool:
    extra = {} if node is None else {"authentication.kubernetes.io/node-name": [node]}
    user = {"username": "system:serviceaccount:pinfold:pinfold", "extra": extra}
    data: dict[str, Any] = {"request": {"userInfo": user}, "object": new, "oldObject": old}
    spec = POLICY["spec"]
    assert all(evaluated(one["expression"], **data) for one in spec["matchConditions"])
    variables: dict[str, Any] = {}
    for one in spec["variables"]:
        variables[one["name"]] = evaluated(one["expression"], **data)
    data["variables"] = variables
    return all(evaluated(one["expression"], **data) for one in spec["validations"])


def resource(node: str | None, named_for: str | None = None) -> dict[str, Any]:
    name = compute_resource_name(named_for or node or "", "nvidia.com/gpu", {})
    spec = {"resourceName": "nvidia.com/gpu"} | ({"nodeName": node} if node else {})
    return {"metadata": {"name": name}, "spec": spec}


def test_an_agent_writes_what_is_of_its_own_node() -> None:
    own, other, nobodys = resource("node-1"), resource("node-2"), resource(None)
    assert allowed("node-1", own, None)
    assert allowed("node-1", own, own)
    assert allowed("node-1", None, own)
    for new, old in [(other, None), (None, other), (own, other), (other, own), (nobodys, None)]:
        assert not allowed("node-1", new, old)
    assert not allowed("node-1", resource("node-1", "node-2"), None)
    assert not allowed(None, own, None)
    assert not allowed(None, nobodys, None)
    assert not allowed("", nobodys, None)
    assert BINDING["spec"] == {
        "policyName": POLICY["metadata"]["name"],
        "validationActions": ["Deny"],
    }


def test_others_are_not_asked() -> None:
    (condition,) = POLICY["spec"]["matchConditions"]
    user = {"username": "system:serviceaccount:other:pinfold"}
    assert not evaluated(condition["expression"], request={"userInfo": user})


@needs_kubectl
def test_kustomize_builds_them() -> None:
    assert sorted(kustomized(FOLDER)) == sorted(
        (one["kind"], one["metadata"]["name"])
        for name in ("resource-class.yaml", "compute-resource.yaml", "policy.yaml")
        for one in documents(name)
    )
