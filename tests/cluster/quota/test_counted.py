"""What pods and claims count for is the same whether they are kept or only what decides is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.cluster.quota.counted import CLAIMS, PODS, TEMPLATES, Counted, SeenPod
from pinfold.core.quota.claims import ClaimRules
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.in_use import in_use
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import quota_from_api
from pinfold.ports.kubernetes import Changed, Kind, Listed, Object

NOW = 1_790_000_000.0
AT = {NOW - 60: "2026-09-21T14:12:20Z", NOW + 60: "2026-09-21T14:14:20Z"}


def resources(cpu: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {"requests": amounts, "limits": amounts}


@st.composite
def pods(draw: st.DrawFn) -> Object:
    cpus = st.sampled_from(["1", "2", "1500m", "4"])

    def container(name: str) -> dict[str, Any]:
        one: dict[str, Any] = {"name": name, "resources": resources(draw(cpus)), "image": "x"}
        return one

    metadata: dict[str, Any] = {"namespace": "team", "labels": {"a": "b"}}
    spec: dict[str, Any] = {"containers": [container("a")], "nodeName": draw(st.sampled_from("xy"))}
    status: dict[str, Any] = {"phase": draw(st.sampled_from(["Running", "Pending", "Succeeded"]))}
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    if draw(st.booleans()):
        spec["initContainers"] = [container("i") | {"restartPolicy": "Always"}]
    if draw(st.booleans()):
        metadata["annotations"] = {"exclusive-cpus.pinfold.dev": "false", "other": "x"}
    if draw(st.booleans()):
        spec["priorityClassName"] = "high"
    if draw(st.booleans()):
        spec["activeDeadlineSeconds"] = 5
    if draw(st.booleans()):
        spec |= {"overhead": {"cpu": "1"}, "resources": resources("8")}
    if draw(st.booleans()):
        metadata["deletionTimestamp"] = AT[draw(st.sampled_from(sorted(AT)))]
        metadata["deletionGracePeriodSeconds"] = 0
    if draw(st.booleans()):
        running = {"name": "a", "resources": resources(draw(cpus))}
        status["containerStatuses"] = [running | {"allocatedResources": {"cpu": draw(cpus)}}]
    if draw(st.booleans()):
        status["qosClass"] = draw(st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]))
    if draw(st.booleans()):
        conditions.append({"type": "PodResizePending", "status": "True", "reason": "Infeasible"})
    if draw(st.booleans()):
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": "shared"}]
        spec["containers"][0]["resources"]["claims"] = [{"name": "c"}]
    return {"metadata": metadata, "spec": spec, "status": {**status, "conditions": conditions}}


SCOPES: tuple[dict[str, Any], ...] = (
    {},
    {"scopes": ["Terminating"]},
    {
        "scopeSelector": {
            "matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
            ]
        }
    },
)


def quota(**spec: Any) -> Any:
    return quota_from_api(
        {
            "metadata": {"namespace": "team", "name": "q"},
            "spec": {"hard": {EXCLUSIVE_CPUS: "9"}, **spec},
            "status": {"hard": {EXCLUSIVE_CPUS: "9"}},
        }
    )


def claim(name: str, cpus: str) -> Object:
    request = {
        "name": "r",
        "exactly": {
            "deviceClassName": "dra.cpu",
            "capacity": {"requests": {"dra.cpu/cpu": cpus}},
        },
    }
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [request]}},
    }


def seen(pod: Object, number: int) -> SeenPod:
    named = pod | {"metadata": {**pod["metadata"], "name": f"p{number}", "uid": f"u{number}"}}
    return msgspec.json.decode(msgspec.json.encode(named), type=SeenPod)


@given(st.lists(pods(), max_size=8), st.sampled_from(SCOPES))
def test_it_counts_as_if_all_were_kept(many: list[Object], scopes: dict[str, Any]) -> None:
    counted = Counted(ClaimRules())
    counted.claims(Listed([claim("shared", "2")], "4", is_first=True, is_last=True), CLAIMS)
    half = len(many) // 2
    listed = [seen(pod, number) for number, pod in enumerate(many[:half])]
    assert counted.pods(Listed(listed, "5", is_first=True, is_last=True)) <= {"team"}
    for number, pod in enumerate(many[half:], half):
        counted.pods(Changed(Kind.ADDED, seen(pod, number), str(6 + number)))
    of = quota(**scopes)
    claims = counted.claims_of("team")
    all_kept = in_use(of, [counted_pod_from_api(one) for one in many], NOW, claims)
    assert counted.total(of, NOW) == all_kept[EXCLUSIVE_CPUS].value()
    for number, pod in enumerate(many):
        counted.pods(Changed(Kind.DELETED, seen(pod, number), str(100 + number)))
    assert counted.total(of, NOW) == (0 if scopes else 2)


def guaranteed(cpu: str) -> Object:
    return {
        "metadata": {"namespace": "team"},
        "spec": {"containers": [{"name": "a", "resources": resources(cpu)}]},
    }


def test_a_new_list_forgets_who_is_not_in_it() -> None:
    counted = Counted()
    for names in (range(4), range(3, 6)):
        parts = [seen(guaranteed("2"), number) for number in names]
        counted.pods(Listed(parts[:1], "7", is_first=True, is_last=False))
        assert counted.versions.get(PODS, 0) in (0, 7)
        counted.pods(Listed(parts[1:], "7", is_first=False, is_last=True))
    assert counted.total(quota(), NOW) == 6
    assert counted.of_object(quota(), "u0", NOW) is None
    assert counted.of_object(quota(), "u5", NOW) == 2


def test_who_should_have_ended_counts_until_then() -> None:
    counted = Counted()
    pod = guaranteed("2")
    pod["metadata"] |= {"deletionTimestamp": AT[NOW + 60], "deletionGracePeriodSeconds": 0}
    counted.pods(Changed(Kind.ADDED, seen(pod, 0), "7"))
    assert counted.next_end("team", NOW) == NOW + 60
    assert [counted.total(quota(), NOW + later) for later in (0, 61)] == [2, 0]
    assert counted.next_end("team", NOW + 61) is None


def test_claims_come_and_go() -> None:
    counted = Counted()
    counted.claims(Listed([claim("a", "2")], "4", is_first=True, is_last=True), CLAIMS)
    template = claim("t", "3")
    template["spec"] = {"spec": template["spec"]}
    counted.claims(Changed(Kind.ADDED, template, "5"), TEMPLATES)
    assert counted.claims_of("team").templates == {"t": 3}
    assert counted.of_object(quota(), "uid-a", NOW) == 2
    assert counted.claims(Changed(Kind.DELETED, claim("a", "2"), "6"), CLAIMS) == {"team"}
    assert counted.total(quota(), NOW) == 0


@pytest.mark.parametrize("broken", [{"a": 1}, "x"])
def test_what_cannot_be_read_is_told_and_counts_for_nothing(broken: object) -> None:
    problems: list[str] = []
    counted = Counted(report=problems.append)
    pod = guaranteed("2")
    pod["spec"]["containers"][0]["resources"] = broken
    pod["spec"]["containers"].append({"name": "b", "resources": {"requests": {"cpu": "x"}}})
    counted.pods(Changed(Kind.ADDED, seen(pod, 0), "7"))
    assert counted.total(quota(), NOW) == 0
    assert len(problems) == 1
    assert problems[0].startswith("pod team/p0 counts for nothing: spec.containers[")


@pytest.mark.parametrize(("heeds", "total"), [(True, 0), (False, 2)])
def test_who_declines_counts_where_no_node_heeds_it(*, heeds: bool, total: int) -> None:
    counted = Counted(heeds_opt_out=heeds)
    pod = guaranteed("2")
    pod["metadata"]["annotations"] = {"exclusive-cpus.pinfold.dev/pod": "false"}
    counted.pods(Changed(Kind.ADDED, seen(pod, 0), "7"))
    assert counted.total(quota(), NOW) == total
