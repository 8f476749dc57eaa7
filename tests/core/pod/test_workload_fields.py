"""Fields of a manifest that are not in force, or none at all: noted or refused, never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.api_fields import POD, Fields, Standing
from pinfold.core.pod.manifest.validation import validate_manifest
from pinfold.core.pod.manifest.workload_fields import (
    CRI,
    PROCESS,
    check_fields,
    findings,
    unknown_fields,
)


def manifest(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    item = {"name": "main", "command": ["true"], **(container or {})}
    return {"metadata": {"name": "web"}, "spec": {"containers": [item], **spec}}


def found(pod: dict[str, Any], runtime: str) -> dict[str, str]:
    return {
        one.path.removeprefix("spec."): "unknown" if one.standing is None else one.standing.value
        for one in findings(pod, runtime)
    }


def test_what_is_not_in_force_is_named() -> None:
    pod = manifest(
        {
            "image": "app:1",
            "livenessProbe": {"exec": {}},
            "readinessProbe": {"exec": {}},
            "envFrom": [{"configMapRef": {"name": "a"}}],
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
            "ports": [{"containerPort": 80, "hostPort": 80}],
            "volumeMounts": [{"name": "a", "mountPath": "/a", "subPath": "b"}],
            "securityContext": {
                "privileged": True,
                "capabilities": {"add": ["X"]},
                "readOnlyRootFilesystem": True,
                "seccompProfile": {"type": "RuntimeDefault"},
                "appArmorProfile": {"type": "Localhost", "localhostProfile": "a"},
                "seLinuxOptions": {"level": "s0"},
            },
        },
        volumes=[
            {"name": "a", "secret": {"secretName": "s"}},
            {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "c", "emptyDir": {"sizeLimit": "1Mi"}},
        ],
        dnsPolicy="None",
        nodeSelector={"a": "b"},
        hostUsers=False,
        runtimeClassName="kata",
        activeDeadlineSeconds=3,
        shareProcessNamespace=True,
    )
    both = {
        "containers[0].livenessProbe": "refused",
        "containers[0].readinessProbe": "noted",
        "containers[0].envFrom": "refused",
        "containers[0].env[0].valueFrom.secretKeyRef": "refused",
        "containers[0].ports[0].hostPort": "noted",
        "containers[0].volumeMounts[0].subPath": "refused",
        "containers[0].securityContext.seLinuxOptions": "refused",
        "volumes[0].secret": "refused",
        "volumes[2].emptyDir.sizeLimit": "noted",
        "dnsPolicy": "noted",
        "nodeSelector": "noted",
        "hostUsers": "refused",
        "activeDeadlineSeconds": "refused",
    }
    assert found(pod, CRI) == {
        **both,
        "containers[0].securityContext.appArmorProfile.localhostProfile": "refused",
        "shareProcessNamespace": "noted",
    }
    assert found(pod, PROCESS) == {
        **both,
        "containers[0].image": "noted",
        "containers[0].securityContext.readOnlyRootFilesystem": "refused",
        "containers[0].securityContext.seccompProfile": "refused",
        "containers[0].securityContext.appArmorProfile": "refused",
        "runtimeClassName": "refused",
    }


def test_what_an_api_server_adds_to_a_pod_is_not_named() -> None:
    """As of ``kubectl get pod -o yaml``."""
    text = ("name", "generateName", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
    more = ("labels", "annotations", "finalizers", "managedFields", "ownerReferences")
    numbers = {"deletionGracePeriodSeconds": 30, "generation": 1}
    metadata = {**dict.fromkeys(text, "a"), **dict.fromkeys(more), **numbers}
    pod = manifest() | {"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}}
    pod["metadata"] = metadata | {"resourceVersion": "1", "selfLink": "/"}
    for runtime in (PROCESS, CRI):
        assert check_fields(pod, runtime) == ()


def test_defaults_and_what_is_empty_are_not_named() -> None:
    plain = manifest(
        {
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "livenessProbe": None,
            "env": [],
            "stdin": False,
            "securityContext": {
                "readOnlyRootFilesystem": False,
                "procMount": "Default",
                "seccompProfile": {"type": "Unconfined"},
            },
        },
        dnsPolicy="ClusterFirst",
        schedulerName="default-scheduler",
        serviceAccountName="default",
        enableServiceLinks=True,
        hostUsers=True,
        tolerations=[],
        os={"name": "linux"},
        securityContext={},
    )
    for runtime in (PROCESS, CRI):
        assert check_fields(plain, runtime) == ()
        assert check_fields({"spec": {"containers": 3, "volumes": ["x"]}}, runtime) == ()
        assert check_fields({"spec": [], "metadata": "x"}, runtime) == ()


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (
            manifest({"comand": ["x"]}),
            'spec.containers[0].comand: unknown field "comand"; did you mean "command"?',
        ),
        (
            manifest({"resorces": {}}),
            'spec.containers[0].resorces: unknown field "resorces"; did you mean "resources"?',
        ),
        (
            manifest({"resources": {"limit": {}}}),
            'spec.containers[0].resources.limit: unknown field "limit"; did you mean "limits"?',
        ),
        (
            manifest({"securityContext": {"runasuser": 1}}),
            (
                'spec.containers[0].securityContext.runasuser: unknown field "runasuser"; did you '
                'mean "runAsUser"?'
            ),
        ),
        (manifest(zzzz=1), 'spec.zzzz: unknown field "zzzz"'),
        (
            {**manifest(), "Spec": {}},
            'Spec: unknown field "Spec"; did you mean "spec"?',
        ),
        (
            {"metadata": {"nmae": "x"}},
            'metadata.nmae: unknown field "nmae"; did you mean "name"?',
        ),
        (
            manifest({"livenessProbe": {"exec": {}}}, hostUsers=False, Volumes=[]),
            (
                "spec.containers[0].livenessProbe: not available here: nothing asks a probe here, "
                "so no container is restarted for one; spec.hostUsers: not available here: the "
                'users of a pod are those of the machine; spec.Volumes: unknown field "Volumes"; '
                'did you mean "volumes"?'
            ),
        ),
        (
            manifest(
                {"volumeMounts": [{"name": "a", "mountPath": "/data"}]},
                volumes=[{"name": "a", "hostPath": {"path": "/srv"}}],
            ),
            (
                "spec.containers[0].volumeMounts[0].mountPath: not available here: a process sees "
                "the machine's files, where /srv is at /srv; write that"
            ),
        ),
        (
            manifest(
                {"volumeMounts": [{"name": "a", "mountPath": "/srv/", "readOnly": True}]},
                volumes=[{"name": "a", "hostPath": {"path": "/srv"}}],
            ),
            "spec.containers[0].volumeMounts[0].readOnly: not available here: a process writes",
        ),
    ],
)
def test_what_would_mislead_is_refused(pod: dict[str, Any], text: str) -> None:
    with pytest.raises(PodError) as raised:
        check_fields(pod, PROCESS)
    assert str(raised.value).startswith(text)


def test_mounts_where_a_process_sees_them() -> None:
    pod = manifest(
        {
            "volumeMounts": [
                {"name": "a", "mountPath": "/srv/"},
                {"name": "my-b", "mountPath": "/b"},
            ]
        },
        volumes=[{"name": "a", "hostPath": {"path": "/srv"}}, {"name": "my-b", "emptyDir": {}}],
    )
    (note,) = check_fields(pod, PROCESS)
    assert note == (
        "spec.containers[0].volumeMounts[1].mountPath: not in force here: a process finds the "
        "volume at the path in PINFOLD_VOLUME_MY_B"
    )
    assert check_fields(pod, CRI) == ()


def rows(fields: Fields, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Fields]]:
    for name, field in fields.items():
        yield (*path, name), fields
        if field.below is not None:
            yield from rows(field.below, (*path, name))


ROWS = list(rows(POD))


def at(path: tuple[str, ...], value: Any) -> Any:
    """A manifest with this value at a path; lists where the API has lists."""
    for name in reversed(path):
        value = {name: [value] if name in LISTS and isinstance(value, dict) else value}
    return value


LISTS = {"containers", "initContainers", "volumes", "env", "ports", "volumeMounts"}


@given(st.sampled_from(ROWS), st.data())
def test_every_misspelt_field_is_found(row: tuple[tuple[str, ...], Fields], data: Any) -> None:
    path, siblings = row
    name = path[-1]
    index = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:index] + name[index + 1 :]
    if wrong in siblings or not wrong:
        return
    (one,) = unknown_fields(at((*path[:-1], wrong), 1))
    assert one.path.rpartition(".")[2] == wrong
    assert f'unknown field "{wrong}"' in one.problem
    with pytest.raises(PodError, match="unknown field"):
        check_fields(at((*path[:-1], wrong), 1), PROCESS)


@given(st.sampled_from(ROWS), st.sampled_from([PROCESS, CRI]))
def test_every_known_field_stands_as_its_row_says(
    row: tuple[tuple[str, ...], Fields], runtime: str
) -> None:
    path, siblings = row
    if path[-1] == "sizeLimit":
        return  # in force in memory, noted on a disk
    field = siblings[path[-1]]
    standing = field.process if runtime == PROCESS else field.cri
    told = [one for one in findings(at(path, "something"), runtime) if one.path.endswith(path[-1])]
    outer = [one for one in findings(at(path, "something"), runtime) if one not in told]
    if outer:
        return  # it stands as what is around it does
    assert [one.standing for one in told] == ([] if standing is Standing.IN_FORCE else [standing])
    assert field.why or standing is Standing.IN_FORCE


def test_fields_of_a_template_have_their_paths() -> None:
    template = {"metadata": {"labels": {}}, "spec": {"container": []}}
    (one,) = unknown_fields(template, "spec.template.")
    assert str(one) == (
        'spec.template.spec.container: unknown field "container"; did you mean "containers"?'
    )
    assert unknown_fields({"kind": "Pod", "spec": {"affinity": {"any": 1}}}) == []


def a_forks_volume(**fields: str) -> dict[str, Any]:
    return manifest(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "hugePages": fields}])


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"pageSize": "2M", "size": "200M", "minSize": "100M"}, "hugepages-2Mi: 200Mi"),
        ({"pageSize": "1G", "size": "4Gi"}, "hugepages-1Gi: 4Gi"),
        ({"pageSize": "\n", "size": "a lot"}, "hugepages-2Mi: SIZE"),
        ({}, "hugepages-2Mi: SIZE"),
    ],
)
@pytest.mark.parametrize("runtime", [PROCESS, CRI])
def test_the_volumes_of_huge_pages_of_a_fork_are_refused(
    fields: dict[str, str], asked: str, runtime: str
) -> None:
    pod = a_forks_volume(**fields)
    for check in (lambda: check_fields(pod, runtime), lambda: validate_manifest(pod)):
        with pytest.raises(PodError) as caught:
            check()
        assert str(caught.value) == (
            'spec.volumes[1].hugePages: unknown field "hugePages": only a fork of Kubernetes had '
            "such volumes; write emptyDir: {medium: HugePages}, and "
            f"{asked} into the limits of the container"
        )


def test_a_fork_s_volume_in_a_template_is_named_by_its_place() -> None:
    template = {"spec": a_forks_volume()["spec"]}
    with pytest.raises(PodError, match=r"^spec\.template\.spec\.volumes\[1\]\.hugePages: "):
        validate_manifest(template, "spec.template.")
