"""What is said of quotas that are valid, and may not be what their author means."""

from __future__ import annotations

from typing import Any

import pytest

from pinfold.core.pod.api import PodError
from pinfold.core.quota.names import EXCLUSIVE_CPUS, is_of_pods
from pinfold.core.quota.quota import quota_from_api
from pinfold.core.quota.remarks import namespace_findings, quota_findings, uncounted
from pinfold.core.quota.validation import namespace_name, quota_problems, valid_quota


def quota(*names: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": dict.fromkeys(names, "1"), **spec}}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("requests.pinfold.dev/exclusive-cpus", EXCLUSIVE_CPUS),
        ("limits.pinfold.dev/exclusive-cpus", EXCLUSIVE_CPUS),
        ("pinfold.dev/exclusive-cpu", EXCLUSIVE_CPUS),
        ("pinfold.io/exclusive-cpus", EXCLUSIVE_CPUS),
        ("class.pinfold.dev/gold", "requests.class.pinfold.dev/gold"),
        ("nvidia.com/gpu", "requests.nvidia.com/gpu"),
        ("limits.nvidia.com/gpu", "requests.nvidia.com/gpu"),
    ],
)
def test_a_name_that_nobody_counts_names_the_one_that_is_meant(name: str, meant: str) -> None:
    assert list(uncounted(quota_from_api(quota(name)))) == [
        f"spec.hard[{name}]: nobody counts it; did you mean {meant}?"
    ]
    assert is_of_pods(meant)


@pytest.mark.parametrize(
    "name",
    [EXCLUSIVE_CPUS, "requests.class.pinfold.dev/gold", "requests.nvidia.com/gpu", "cpu", "pods"],
)
def test_of_what_is_counted_nothing_is_said(name: str) -> None:
    assert list(uncounted(quota_from_api(quota(name)))) == []


def test_what_is_not_about_pods_is_said_to_be_the_api_servers() -> None:
    names = ("services", "count/deployments.apps", "gold.deviceclass.resource.k8s.io/devices")
    told = list(uncounted(quota_from_api(quota(*names))))
    assert len(told) == len(names)
    assert all("not about pods; an API server counts it" in one for one in told)


def test_misspelt_fields_and_versions_are_found() -> None:
    selector = {"matchExpressions": [{"scopeName": "BestEffort", "operater": "Exists"}]}
    wrong = {**quota("pods", scope=["BestEffort"], scopeSelector=selector), "apiVersion": "v2"}
    assert [str(one) for one in quota_findings(wrong)] == [
        'apiVersion: unknown version "v2"; it is v1',
        'spec.scope: unknown field "scope"; did you mean "scopes"?',
        (
            "spec.scopeSelector.matchExpressions[0].operater: "
            'unknown field "operater"; did you mean "operator"?'
        ),
    ]
    namespace = {"metadata": {"name": "a"}, "sepc": {}}
    assert [one.path for one in namespace_findings(namespace)] == ["sepc"]


@pytest.mark.parametrize(
    ("manifest", "remedy"),
    [
        (quota("pods", scopes=["Best"]), "there are Terminating, NotTerminating"),
        (quota("memory", scopes=["BestEffort"]), "memory does not go with BestEffort, but pods"),
        (quota("pods", scopes=["VolumeAttributesClass"]), "but persistentvolumeclaims"),
        (quota("pods", scopes=["BestEffort", "NotBestEffort"]), "make a quota for each"),
        (quota("memmory"), "did you mean memory?"),
        (quota("gpus"), "has a domain, such as requests.nvidia.com/gpu"),
        ({"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "four"}}}, "such as 4, 500m or 16Gi"),
        (
            quota(
                "pods",
                scopeSelector={
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "Is"}]
                },
            ),
            "there are In, NotIn, Exists, DoesNotExist",
        ),
    ],
)
def test_what_is_refused_comes_with_a_remedy_behind_the_api_servers_text(
    manifest: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(PodError, match="Invalid value") as caught:
        valid_quota(manifest)
    assert remedy in str(caught.value)
    if "regular" not in str(caught.value):
        [first, *_] = quota_problems(quota_from_api(manifest))
        assert str(caught.value) == f"{first}; {first.remedy}"


@pytest.mark.parametrize("metadata", [{}, {"name": "A_B"}, {"name": 3}])
def test_a_namespace_has_a_name_that_a_namespace_may_have(metadata: dict[str, Any]) -> None:
    with pytest.raises(PodError, match=r"metadata\.name"):
        namespace_name({"metadata": metadata})
