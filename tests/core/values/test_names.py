"""Names that Kubernetes takes: what the API server says, and that all of the node can bear them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.cgroup.names import can_be_named, container_folder, key_of, pod_folder
from pinfold.adapters.podfiles.files import file_name
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.names import reference_problems
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.values.names import (
    label_problems,
    label_value_problems,
    prefix_problems,
    subdomain_problems,
    variable_problems,
)
from pinfold.ports.errors import ContainerKey

SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    r"for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)


def manifest(container: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "command": ["true"], **(container or {})}]}
    metadata = {"name": "web", **changed.pop("metadata", {})}
    return {"metadata": metadata, "spec": {**spec, **changed}}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (manifest(metadata={"name": "a/b"}), f'metadata.name: Invalid value: "a/b": {SUBDOMAIN}'),
        (
            manifest(metadata={"name": "../../x y"}),
            f'metadata.name: Invalid value: "../../x y": {SUBDOMAIN}',
        ),
        (manifest(metadata={"name": "Web"}), f'metadata.name: Invalid value: "Web": {SUBDOMAIN}'),
        (
            manifest(metadata={"name": "x" * 254}),
            f'metadata.name: Invalid value: "{"x" * 254}": must be no more than 253 bytes',
        ),
        (
            manifest(metadata={"name": "x" * 9999}),
            f'metadata.name: Invalid value: "{"x" * 63}...": must be no more than 253 bytes',
        ),
        (
            manifest(metadata={"namespace": "a.b"}),
            'metadata.namespace: Invalid value: "a.b": must not contain dots',
        ),
        (
            manifest(metadata={"generateName": "AB-"}),
            f'metadata.generateName: Invalid value: "AB-": {SUBDOMAIN}',
        ),
        (
            manifest(metadata={"uid": "u" * 64}),
            f'metadata.uid: Invalid value: "{"u" * 64}": must be no more than 63 bytes',
        ),
        (
            manifest({"name": "x" * 64}),
            f'spec.containers[0].name: Invalid value: "{"x" * 64}": must be no more than 63 bytes',
        ),
        (manifest({"name": "a b"}), f'spec.containers[0].name: Invalid value: "a b": {LABEL}'),
        (
            manifest(volumes=[{"name": "A", "hostPath": {"path": "/a"}}]),
            f'spec.volumes[0].name: Invalid value: "A": {LABEL}',
        ),
        (
            manifest(volumes=[{"name": "a", "emptyDir": {}}] * 2),
            'spec.volumes[1].name: Duplicate value: "a"',
        ),
        (
            manifest({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}),
            'spec.containers[0].volumeMounts[0].name: Not found: "a"',
        ),
        (
            manifest({"env": [{"name": "Ä", "value": "1"}]}),
            'spec.containers[0].env[0].name: Invalid value: "Ä": a valid environment variable name',
        ),
        (
            manifest(metadata={"annotations": {"a b": "1"}}),
            'metadata.annotations: Invalid value: "a b": name part must consist of alphanumeric',
        ),
        (
            manifest(metadata={"annotations": {"a": 1}}),
            "metadata.annotations.a: must be a string, not 1 (quote it)",
        ),
        (
            manifest(metadata={"annotations": {"a": True}}),
            "metadata.annotations.a: must be a string, not true (quote it)",
        ),
        (
            manifest(metadata={"labels": {"app": "a b"}}),
            'metadata.labels: Invalid value: "a b": a valid label must be an empty string or',
        ),
    ],
)
def test_what_the_api_server_refuses(wrong: dict[str, Any], text: str) -> None:
    before = copy.deepcopy(wrong)
    with pytest.raises(PodError) as raised:
        workload_from_api(wrong)
    assert str(raised.value).startswith(text)
    assert wrong == before


def test_what_is_fine() -> None:
    pod = workload_from_api(
        manifest(
            {"env": [{"name": "a.b-c 1", "value": ""}]},
            metadata={
                "name": "x" * 253,
                "namespace": "0",
                "uid": "Ab_c.1",
                "labels": {"app.kubernetes.io/name": "Web_1", "b": ""},
                # The API server compares these in lower case.
                "annotations": {"Example.COM/Key": "any text\n"},
            },
        )
    ).pod
    assert (len(pod.name), pod.uid) == (253, "Ab_c.1")
    assert not list(prefix_problems("web-"))
    assert not list(prefix_problems("w"))
    assert list(prefix_problems("-"))


def test_who_is_on_record_is_not_judged_again() -> None:
    """An agent with stricter rules than its predecessor ends no pod for its name."""
    old = manifest({"name": "A B"}, metadata={"name": "a/b", "uid": "../" * 100})
    workload = workload_from_api(old, admitted=True)
    assert workload.pod.name == "a/b"
    assert list(workload.processes) == ["A B"]


@given(st.text(max_size=70), st.text(max_size=70), st.text(max_size=260))
def test_what_is_taken_can_be_named_everywhere(uid: str, container: str, name: str) -> None:
    """Cgroups, and files for applications: 255 bytes at most, no path, and they come back."""
    if uid and not any(label_value_problems(uid)) and not any(label_problems(container)):
        _check_names(uid, container)
    if not any(subdomain_problems(name)):
        assert name.isascii()
        assert not set(name) & {"/", "_", " ", "\0"}


LETTERS = "abcxyzABCXYZ0129"
INNER = st.text(alphabet=f"{LETTERS}-_.", max_size=61)
UIDS = st.builds("{}{}{}".format, st.sampled_from(LETTERS), INNER, st.sampled_from(LETTERS))
LABELS = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


@given(UIDS, LABELS)
def test_what_is_long_and_full_of_dots_can_be_named_too(uid: str, container: str) -> None:
    assert not list(label_value_problems(uid))
    assert not list(label_problems(container))
    assert not list(reference_problems({"metadata": {"uid": uid}}))
    _check_names(uid, container)


def _check_names(uid: str, container: str) -> None:
    key = ContainerKey(uid, container)
    assert can_be_named(key)
    folders = (pod_folder(uid), container_folder(key))
    assert key_of(*folders) == key
    assert all(len(folder) <= 255 for folder in folders)
    assert len(file_name(uid)) <= 255


@pytest.mark.parametrize("name", ["A", "a b", "%1", "my.env-name", "_"])
def test_variables(name: str) -> None:
    assert not list(variable_problems(name))
    assert list(variable_problems(f"{name}="))
    assert list(variable_problems("")) == ["environment variable name must be non-empty"]
