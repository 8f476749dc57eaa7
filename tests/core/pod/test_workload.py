"""What a manifest says of images, volumes, users and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.workload import HostPath, Process, PullPolicy, VolumeMount, pull_policy


def manifest(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    item = {"name": "main", "image": "app:1", **(container or {})}
    return {"metadata": {"name": "web"}, "spec": {"containers": [item], **spec}}


def process(container: dict[str, Any] | None = None, **spec: Any) -> Process:
    return workload_from_api(manifest(container, **spec)).processes["main"]


def test_command_and_args_are_kept_apart() -> None:
    both = process({"command": ["sh", "-c"], "args": ["echo $(A)"], "env": [{"name": "A"}]})
    assert (both.command, both.args) == (("sh", "-c"), ("echo ",))
    assert both.argv == ("sh", "-c", "echo ")
    assert process({"args": ["-v"]}).command == ()


@pytest.mark.parametrize(
    ("image", "said", "holds"),
    [
        ("app", None, PullPolicy.ALWAYS),
        ("app:latest", None, PullPolicy.ALWAYS),
        ("app:1", None, PullPolicy.IF_NOT_PRESENT),
        ("registry:5000/app", None, PullPolicy.ALWAYS),
        ("registry:5000/app:1", None, PullPolicy.IF_NOT_PRESENT),
        ("app@sha256:0", None, PullPolicy.IF_NOT_PRESENT),
        ("app:latest@sha256:0", None, PullPolicy.IF_NOT_PRESENT),
        ("app:latest", "Never", PullPolicy.NEVER),
        ("app:1", "Always", PullPolicy.ALWAYS),
    ],
)
def test_the_pull_policy_has_the_kubelets_defaults(
    image: str, said: str | None, holds: PullPolicy
) -> None:
    assert pull_policy(process({"image": image, "imagePullPolicy": said})) is holds


def test_variables_come_from_values_other_variables_and_fields() -> None:
    def field(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    env = [
        {"name": "NAME", "valueFrom": field("metadata.name")},
        {"name": "SPACE", "value": "in $(NAME)", "valueFrom": None},
        {"name": "EMPTY"},
    ]
    assert process({"env": env}).env == {"NAME": "web", "SPACE": "in web", "EMPTY": ""}
    for wrong in (field("status.podIP"), {"fieldRef": "metadata.name"}, "metadata.name"):
        with pytest.raises(
            PodError, match=r"env\[0\]\.valueFrom: only fieldRef of metadata\.name, "
        ):
            process({"env": [{"name": "A", "valueFrom": wrong}]})


def test_volumes_are_mounted() -> None:
    found = process(
        {
            "volumeMounts": [
                {"name": "data", "mountPath": "/data", "readOnly": True},
                {"name": "scratch", "mountPath": "/scratch"},
                {"name": "settings", "mountPath": "/etc/app"},
            ]
        },
        volumes=[
            {"name": "data", "hostPath": {"path": "/srv", "type": "Directory"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "settings", "configMap": {"name": "app"}},
        ],
    )
    assert found.volume_mounts == (
        VolumeMount("data", "/data", HostPath("/srv", "Directory"), read_only=True),
        VolumeMount("scratch", "/scratch"),
    )


def test_users_and_privileges() -> None:
    own = process(
        {"securityContext": {"runAsUser": 5, "privileged": True}},
        securityContext={"runAsUser": 1, "runAsGroup": 2},
    )
    found = own.security
    assert (found.run_as_user, found.run_as_group, found.privileged) == (5, 2, True)


def test_the_sandbox() -> None:
    workload = workload_from_api(
        manifest(
            {"securityContext": {"privileged": True}},
            hostNetwork=True,
            hostPID=True,
            hostIPC=True,
            runtimeClassName="kata",
        )
    )
    sandbox = workload.sandbox
    assert (sandbox.host_network, sandbox.host_pid, sandbox.host_ipc) == (True, True, True)
    assert (sandbox.runtime_class, sandbox.privileged) == ("kata", True)
    plain = workload_from_api(manifest()).sandbox
    assert (plain.host_network, plain.privileged, plain.runtime_class) == (False, False, None)


@pytest.mark.parametrize(
    ("container", "spec", "path"),
    [
        ({"imagePullPolicy": "Sometimes"}, {}, "spec.containers[0].imagePullPolicy"),
        ({"volumeMounts": {}}, {}, "spec.containers[0].volumeMounts"),
        (
            {"volumeMounts": [{"name": "a", "mountPath": "b"}]},
            {},
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (
            {"securityContext": {"runAsUser": -1}},
            {},
            "spec.containers[0].securityContext.runAsUser",
        ),
        ({"securityContext": 1}, {}, "spec.containers[0].securityContext"),
        ({}, {"hostNetwork": "yes"}, "spec.hostNetwork"),
        ({}, {"volumes": [{}]}, "spec.volumes[0].name"),
        ({}, {"volumes": [{"name": "../x", "emptyDir": {}}]}, "spec.volumes[0].name"),
        (
            {},
            {"volumes": [{"name": "a", "hostPath": {"path": "/a/../b"}}]},
            "spec.volumes[0].hostPath.path",
        ),
        (
            {},
            {"volumes": [{"name": "a", "hostPath": {"path": "/a", "type": "Disk"}}]},
            "spec.volumes[0].hostPath.type",
        ),
    ],
)
def test_what_is_wrong_is_named(container: dict[str, Any], spec: dict[str, Any], path: str) -> None:
    with pytest.raises(PodError) as raised:
        workload_from_api(manifest(container, **spec))
    assert raised.value.path == path


def test_references_that_double_each_other_are_refused_at_once() -> None:
    """A short manifest must not take the memory of the machine."""
    env = [{"name": "A0", "value": "x" * 16}]
    env += [{"name": f"A{n}", "value": f"$(A{n - 1})$(A{n - 1})"} for n in range(1, 64)]
    with pytest.raises(PodError, match=r"the references \$\(NAME\) stand for more than 16777216"):
        process({"env": env})
    with pytest.raises(PodError, match="stand for more than"):
        process({"env": [{"name": "A", "value": "x" * 100_000}], "command": ["$(A)"] * 1000})
    assert len(process({"env": env[:10]}).env["A9"]) == 16 << 9
    many = {"env": [{"name": "A", "value": "x" * 1000}], "command": ["$(A)"] * 1000}
    assert len("".join(process(many).command)) == 1_000_000


def test_a_pod_has_so_many_containers_at_most() -> None:
    def pod(init: int, count: int) -> dict[str, Any]:
        lists = {"initContainers": init, "containers": count}
        spec = {
            key: [{"name": f"{key[0]}{n}", "image": "a"} for n in range(size)]
            for key, size in lists.items()
        }
        return {"metadata": {"name": "web"}, "spec": spec}

    assert len(workload_from_api(pod(400, 600)).processes) == 1000
    with pytest.raises(PodError, match="Too many: 1001: a pod has 1000 at most"):
        workload_from_api(pod(401, 600))
    # One on record is what runs.
    assert len(workload_from_api(pod(401, 600), admitted=True).processes) == 1001
