"""What a pod takes from the downward API: what is refused, and what is known only at its start."""

from __future__ import annotations

from typing import Any

import pytest

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.assigned_fields import filled, filled_process
from pinfold.core.pod.manifest.validation import manifest_problems
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.manifest.workload_fields import CRI, PROCESS, check_fields

CPUSET = {"resource": "assigned.cpuset"}


def pod(
    *items: dict[str, Any], env: list[dict[str, Any]] | None = None, **source: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "command": ["run", "--on=$(ON)"],
                    "env": env or [],
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                },
                {"name": "side", "command": ["run"]},
            ],
            "volumes": [{"name": "v", "downwardAPI": {"items": list(items), **source}}],
        },
    }


def item(path: str = "cpus", **resource: Any) -> dict[str, Any]:
    return {"path": path, "resourceFieldRef": {"containerName": "main", **CPUSET, **resource}}


def value(resource: str, container: str) -> str:
    return f"<{resource} of {container}>"


@pytest.mark.parametrize("runtime", [PROCESS, CRI])
def test_files_and_variables_are_filled_when_they_are_known(runtime: str) -> None:
    env: list[dict[str, Any]] = [
        {"name": "ON", "valueFrom": {"resourceFieldRef": CPUSET}},
        {"name": "BOTH", "value": "$(ON)+$(ON)"},
        {
            "name": "THEIRS",
            "valueFrom": {"resourceFieldRef": {**CPUSET, "containerName": "side"}},
        },
    ]
    manifest = pod(
        item("a", mode=0o400) | {"mode": 0o400},
        item("b/c", resource="assigned.memset"),
        {"path": "name", "fieldRef": {"fieldPath": "metadata.namespace"}},
        env=env,
        defaultMode=0o440,
    )
    del manifest["spec"]["volumes"][0]["downwardAPI"]["items"][0]["resourceFieldRef"]["mode"]
    assert list(manifest_problems(manifest)) == []
    notes = check_fields(manifest, runtime)
    assert len(notes) == (1 if runtime == PROCESS else 0)
    process = workload_from_api(manifest).processes["main"]
    (mount,) = process.volume_mounts
    assert mount.read_only
    assert mount.downward is not None
    found = [(one.path, filled(one.text, value), one.mode) for one in mount.downward.files]
    assert found == [
        ("a", "<assigned.cpuset of main>", 0o400),
        ("b/c", "<assigned.memset of main>", 0o440),
        ("name", "n", 0o440),
    ]
    told = filled_process(process, value)
    mine = "<assigned.cpuset of main>"
    assert told.argv == told.command == ("run", f"--on={mine}")
    assert told.env == {"ON": mine, "BOTH": f"{mine}+{mine}", "THEIRS": "<assigned.cpuset of side>"}
    side = workload_from_api(manifest).processes["side"]
    assert filled_process(side, value) is side


@pytest.mark.parametrize(
    ("items", "text"),
    [
        (
            item(resource="assigned.cpus"),
            (
                'resourceFieldRef.resource: Unsupported value: "assigned.cpus": supported values: '
                '"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", '
                '"requests.ephemeral-storage", "requests.memory"'
            ),
        ),
        (item(resource=""), "resourceFieldRef.resource: Required value"),
        (item(containerName=""), "resourceFieldRef.containerName: Required value"),
        (
            item(divisor="2"),
            (
                'resourceFieldRef.divisor: Invalid value: "assigned.cpuset": only divisor\'s '
                "values 1 are supported with the assigned.cpuset resource"
            ),
        ),
        (item("/x"), 'path: Invalid value: "/x": must be a relative path'),
        (item("a/../b"), "path: Invalid value: \"a/../b\": must not contain '..'"),
        (item("..x"), "path: Invalid value: \"..x\": must not start with '..'"),
        (item(""), "path: Required value"),
        ({"path": "x"}, ": Required value: one of fieldRef and resourceFieldRef is required"),
        (
            {**item(), "fieldRef": {"fieldPath": "metadata.name"}},
            (
                ': Invalid value: "resource": fieldRef and resourceFieldRef can not be specified '
                "simultaneously"
            ),
        ),
        (
            {**item(), "mode": 0o1000},
            "mode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
        ),
        (
            {"path": "x", "fieldRef": {"fieldPath": "status.podIP"}},
            (
                'fieldRef.fieldPath: Unsupported value: "status.podIP": supported values: '
                '"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", '
                '"metadata.uid"'
            ),
        ),
    ],
)
def test_what_the_api_server_refuses_is_refused(items: dict[str, Any], text: str) -> None:
    where = "spec.volumes[0].downwardAPI.items[0]"
    (problem, *_) = manifest_problems(pod(items))
    assert str(problem) == where + (text if text.startswith(":") else f".{text}")


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        (item(containerName="other"), 'containerName: Not found: "other"'),
        (
            item(resource="limits.cpu"),
            "resource: only assigned.cpuset and assigned.memset are known here; write a value",
        ),
        (
            {"path": "x", "fieldRef": {"fieldPath": "metadata.labels"}},
            "fieldPath: only metadata.name, metadata.namespace, metadata.uid are known here",
        ),
    ],
)
def test_what_is_not_known_here_is_refused(resource: dict[str, Any], words: str) -> None:
    with pytest.raises(PodError) as caught:
        workload_from_api(pod(resource))
    assert words in str(caught.value)


def test_one_path_twice_is_refused() -> None:
    (problem,) = manifest_problems(pod(item("a"), item("a")))
    assert str(problem).endswith('items[1].path: Duplicate value: "a"')
