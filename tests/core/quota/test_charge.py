"""Charging pods to quotas: what is used never gets beyond what is hard, whatever the order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.pod.api import PodError
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.quota.charge import (
    CREATE,
    RESIZE,
    UPDATE,
    Charged,
    Refused,
    Request,
    Rules,
    charge,
    charge_claim,
)
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules, Claims, claimed_cpus
from pinfold.core.quota.counted_pod import CountedPod, counted_pod_from_api
from pinfold.core.quota.in_use import in_use
from pinfold.core.quota.names import EXCLUSIVE_CPUS, IN, PRIORITY_CLASS
from pinfold.core.quota.quota import ResourceQuota, ScopeRequirement, quota_from_api
from pinfold.core.quota.resource_list import add, exceeded, subtract
from pinfold.core.quota.usage import usage
from pinfold.core.quota.validation import quota_problems
from pinfold.core.values.quantity import Quantity

NOW = 1_800_000_000.0
NAMES = ("pods", "cpu", "memory", "limits.cpu", "requests.example.com/gpu", EXCLUSIVE_CPUS)


def pod_of(
    cpu: str = "2", *, name: str = "p", annotations: dict[str, str] | None = None, **spec: Any
) -> CountedPod:
    """A Guaranteed pod of one container, as the API server has defaulted it."""
    limits = {"cpu": cpu, "memory": "1Gi"}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    manifest = {
        "metadata": {"name": name, "uid": name, "annotations": annotations or {}},
        "spec": {"containers": containers, **spec},
    }
    found = counted_pod_from_api(manifest)
    return replace(found, pod=apply_defaults(found.pod))


def exclusive(pod: CountedPod, claims: Claims = Claims()) -> int:  # noqa: B008 - frozen
    return usage(pod, NOW, claims).get(EXCLUSIVE_CPUS, Quantity(0)).value()


def quota_of(**hard: str) -> ResourceQuota:
    names = {"exclusive": EXCLUSIVE_CPUS}
    spec = {"hard": {names.get(name, name): amount for name, amount in hard.items()}}
    found = quota_from_api({"metadata": {"name": "q"}, "spec": spec})
    return found.with_status(dict.fromkeys(found.hard, Quantity(0)))


@pytest.mark.parametrize(
    ("cpus", "pod"),
    [
        (2, pod_of("2")),
        (0, pod_of("1500m")),
        (1, pod_of("1500m", annotations={"mixed-cpus.pinfold.dev/pod": "true"})),
        (0, pod_of(annotations={"exclusive-cpus.pinfold.dev/pod": "false"})),
        (0, pod_of(annotations={"exclusive-cpus.pinfold.dev/container.c": "false"})),
        (2, pod_of(annotations={"smt-isolate.pinfold.dev/pod": "true"})),
        (2, pod_of(annotations={"load-driven.pinfold.dev/pod": "true"})),
        (0, pod_of("0")),
    ],
)
def test_exclusive_cpus_are_counted_as_the_static_policy_counts(cpus: int, pod: CountedPod) -> None:
    assert exclusive(pod) == cpus


def container(name: str, cpu: str, policy: str | None = None) -> dict[str, Any]:
    resources = {"cpu": cpu, "memory": "1Gi"}
    found = {"name": name, "resources": {"limits": resources, "requests": resources}}
    return found if policy is None else {**found, "restartPolicy": policy}


def test_init_containers_count_as_the_most_at_any_one_time() -> None:
    inits = [container("first", "6"), container("side", "3", "Always"), container("last", "4")]
    pod = pod_of(containers=[container("c", "2")], initContainers=inits)
    assert exclusive(pod) == 7


def test_a_burstable_pod_owns_nothing() -> None:
    burstable = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
    assert exclusive(pod_of(containers=[burstable])) == 0


def test_a_pod_as_a_whole_is_charged_what_it_asks_for() -> None:
    whole = {"cpu": "8", "memory": "4Gi"}
    resources = {"requests": whole, "limits": whole}
    assert exclusive(pod_of("2", resources=resources)) == 8
    # A budget with a fraction is no bubble anywhere: only who has both for itself owns CPUs.
    fraction = {"cpu": "8500m", "memory": "16Gi"}
    as_a_whole = {"requests": fraction, "limits": fraction}
    assert exclusive(pod_of("2", resources=as_a_whole)) == 2
    shares = container("c", "2")
    shares["resources"]["limits"] = {"cpu": "4", "memory": "1Gi"}
    assert exclusive(pod_of(containers=[shares], resources=as_a_whole)) == 0
    left_out = {"exclusive-cpus.pinfold.dev/pod": "false"}
    assert exclusive(pod_of("2", resources=resources, annotations=left_out)) == 0


def resizing(wanted: str, there: str, reason: str = "") -> CountedPod:
    pod = pod_of(wanted)
    statuses = [{"name": "c", "resources": {"requests": {"cpu": there}}}]
    conditions = [{"type": "PodResizePending", "reason": reason}] if reason else []
    status = {"containerStatuses": statuses, "conditions": conditions}
    return counted_pod_from_api(
        {"metadata": {"name": "p", "uid": "p", "resourceVersion": "1"}, "status": status}, pod.pod
    )


@pytest.mark.parametrize(
    ("cpus", "pod"),
    [
        (4, resizing("4", "2")),
        (4, resizing("2", "4")),
        (2, resizing("4", "2", "Infeasible")),
        (4, resizing("4", "2", "Deferred")),
        (2, resizing("2500m", "2")),
    ],
)
def test_a_resize_counts_before_it_is_granted(cpus: int, pod: CountedPod) -> None:
    assert exclusive(pod) == cpus


def test_a_resize_beyond_the_quota_is_refused() -> None:
    quota = quota_of(exclusive="4").with_status({EXCLUSIVE_CPUS: Quantity(2)})
    old = replace(pod_of("2"), resource_version="7")
    granted = charge([quota], Request(UPDATE, pod_of("4"), old, RESIZE), NOW)
    assert isinstance(granted, Charged)
    assert granted.quotas[0].used[EXCLUSIVE_CPUS] == Quantity(4)
    refused = charge([quota], Request(UPDATE, pod_of("5"), old, RESIZE), NOW)
    assert refused == Refused(
        f'pods "p" is forbidden: exceeded quota: q, requested: {EXCLUSIVE_CPUS}=3, '
        f"used: {EXCLUSIVE_CPUS}=2, limited: {EXCLUSIVE_CPUS}=4",
        "q",
    )


def test_beside_an_api_server_only_our_own_name_is_charged() -> None:
    quota = quota_of(exclusive="4", pods="0", cpu="1")
    assert isinstance(charge([quota], Request(CREATE, pod_of()), NOW), Refused)
    alone = charge([quota], Request(CREATE, pod_of()), NOW, Rules(only_own=True))
    assert isinstance(alone, Charged)
    assert alone.charged == {"q": {EXCLUSIVE_CPUS: Quantity(2)}}


def test_a_quota_of_nobody_knows_how_much_is_used_refuses() -> None:
    quota = replace(quota_of(exclusive="4"), used={})
    answer = charge([quota], Request(CREATE, pod_of()), NOW)
    assert isinstance(answer, Refused)
    assert "status unknown for quota: q" in answer.message


def test_what_should_be_gone_is_charged_no_more() -> None:
    pod = replace(pod_of(), deleted_at=NOW - 31, deletion_grace=30)
    assert usage(pod, NOW) == {"count/pods": Quantity(1)}
    assert EXCLUSIVE_CPUS in usage(pod, NOW - 1)


def test_a_name_of_ours_is_a_whole_number() -> None:
    manifest = {"metadata": {"name": "q"}, "spec": {"hard": {EXCLUSIVE_CPUS: "1500m"}}}
    assert [str(one) for one in quota_problems(quota_from_api(manifest))] == [
        f'spec.hard[{EXCLUSIVE_CPUS}]: Invalid value: "1500m": must be an integer'
    ]


@pytest.mark.parametrize("field", ["spec", "metadata", "status"])
def test_an_object_that_is_no_quota_is_named(field: str) -> None:
    with pytest.raises(PodError, match=field):
        quota_from_api({"metadata": {"name": "q"}, field: "nonsense"})


# Claims


def claim_of(*requests: dict[str, Any], status: dict[str, Any] | None = None) -> ClaimedCPUs:
    devices = {"requests": [{"name": f"r{n}", **one} for n, one in enumerate(requests)]}
    manifest = {"kind": "ResourceClaim", "spec": {"devices": devices}, "status": status}
    return claimed_cpus(manifest, ClaimRules())


def cpus_of(amount: str, **more: Any) -> dict[str, Any]:
    return {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": amount}}, **more}


def test_claims_count_by_capacity() -> None:
    other = {"exactly": {"deviceClassName": "gpu.example.com", "count": 8}}
    assert claim_of({"exactly": cpus_of("10", count=2)}, other) == ClaimedCPUs(20)
    assert claim_of({"firstAvailable": [cpus_of("4"), cpus_of("16")]}) == ClaimedCPUs(16)
    assert claim_of(cpus_of("3")) == ClaimedCPUs(3)
    given = {"driver": "dra.cpu", "consumedCapacity": {"dra.cpu/cpu": "12"}}
    status = {"allocation": {"devices": {"results": [given]}}}
    assert claim_of(cpus_of("10"), status=status) == ClaimedCPUs(12)


def test_a_claim_without_a_number_is_refused() -> None:
    claimed = claim_of({"exactly": {"deviceClassName": "dra.cpu"}})
    assert claimed.unspecified == ("r0",)
    assert charge_claim([quota_of(exclusive="64")], "c", claimed, "dra.cpu/cpu") == Refused(
        'resourceclaims.resource.k8s.io "c" is forbidden: failed quota: q: '
        "must specify dra.cpu/cpu for: r0",
        "q",
    )
    assert isinstance(charge_claim([quota_of(cpu="1")], "c", claimed, "dra.cpu/cpu"), Charged)


def test_a_template_counts_what_its_claims_ask_for() -> None:
    spec = {"spec": {"devices": {"requests": [{"name": "r", "exactly": cpus_of("6")}]}}}
    template = {"kind": "ResourceClaimTemplate", "spec": spec}
    assert claimed_cpus(template, ClaimRules()) == ClaimedCPUs(6)


def test_a_container_with_a_claim_is_charged_what_is_above_it() -> None:
    """The claim is charged by itself, and its driver wants its number in the requests again."""
    one = container("c", "10")
    one["resources"]["claims"] = [{"name": "cpus"}]
    pod = pod_of(
        containers=[one, container("d", "2")],
        resourceClaims=[{"name": "cpus", "resourceClaimTemplateName": "ten"}],
    )
    assert exclusive(pod, Claims(templates={"ten": 10})) == 2
    assert exclusive(pod, Claims(templates={"ten": 4})) == 8
    assert exclusive(pod) == 12


def test_a_quota_that_counts_no_claim_counts_the_pod_in_full() -> None:
    one = container("c", "4")
    one["resources"]["claims"] = [{"name": "cpus"}]
    named = [{"name": "cpus", "resourceClaimName": "four"}]
    pod = pod_of(containers=[one], resourceClaims=named, priorityClassName="high")
    known = Claims(claims={"four": 4})
    quota = quota_of(exclusive="3")
    high = ScopeRequirement(PRIORITY_CLASS, IN, ("high",))
    scoped = replace(quota, name="scoped", selector=(high,))
    claimed = ClaimedCPUs(4)
    for of, refused_as in ((quota, "claim"), (scoped, "pod")):
        answers = {
            "claim": charge_claim([of], "four", claimed, "dra.cpu/cpu"),
            "pod": charge([of], Request(CREATE, pod), NOW, claims=known),
        }
        refused = [name for name, one in answers.items() if isinstance(one, Refused)]
        assert refused == [refused_as]
        assert in_use(of, [pod], NOW, known) == {EXCLUSIVE_CPUS: Quantity(4)}


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        ("metadata", "deletionTimestamp", "0001-01-01T00:00:00"),
        ("metadata", "deletionTimestamp", "2026-01-31T08:00:00"),
        ("metadata", "deletionGracePeriodSeconds", 1 << 63),
        ("spec", "activeDeadlineSeconds", 1 << 63),
    ],
)
def test_a_time_that_is_none_is_named(place: str, field: str, value: object) -> None:
    with pytest.raises(PodError, match=f"^{place}.{field}: must be "):
        counted_pod_from_api({place: {field: value}})


def test_the_status_of_a_claim_has_a_name() -> None:
    spec = {"resourceClaims": [{"name": "cpus"}]}
    status: dict[str, Any] = {"resourceClaimStatuses": [{"name": []}]}
    with pytest.raises(PodError, match=r"resourceClaimStatuses.*name"):
        counted_pod_from_api({"spec": spec, "status": status})


# Properties


amounts = st.sampled_from(["0", "1", "2", "1500m", "3"])
containers = st.builds(container, st.just("c"), amounts, st.sampled_from([None, "Always"]))


@st.composite
def pods(draw: st.DrawFn) -> CountedPod:
    """Pods of a few containers, with and without scopes, annotations and a version."""
    running = draw(st.lists(containers, min_size=1, max_size=3))
    inits = draw(st.lists(containers, max_size=2))
    named = [{**one, "name": f"c{number}"} for number, one in enumerate(running)]
    first = [{**one, "name": f"i{number}"} for number, one in enumerate(inits)]
    deadline = draw(st.sampled_from([None, 60]))
    left_out = {"exclusive-cpus.pinfold.dev/pod": "false"}
    annotations = draw(st.sampled_from([{}, left_out]))
    found = pod_of(
        containers=named, initContainers=first, activeDeadlineSeconds=deadline,
        annotations=annotations,
    )  # fmt: skip
    return replace(found, resource_version="1")


hards = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 12).map(Quantity), min_size=1)


@st.composite
def quotas(draw: st.DrawFn) -> list[ResourceQuota]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        scopes = draw(st.sampled_from([(), ("Terminating",), ("NotTerminating",)]))
        quota = ResourceQuota("default", f"q{number}", draw(hards), scopes)
        found.append(quota.with_status(dict.fromkeys(quota.hard, Quantity(0))))
    return found


steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), pods()),
        st.tuples(st.just("delete"), st.integers(0, 20)),
        st.tuples(st.just("resize"), st.tuples(st.integers(0, 20), pods())),
    ),
    max_size=12,
)


@given(quotas(), steps)
def test_used_is_the_sum_of_the_pods_and_never_beyond_hard(
    held: list[ResourceQuota], taken: list[tuple[str, Any]]
) -> None:
    """Whatever comes in which order; a shrink is given back by whoever counts anew."""
    there: list[CountedPod] = []
    for what, said in taken:
        if what == "delete":
            if there:
                there.pop(said % len(there))
        elif what == "create":
            answer = charge(held, Request(CREATE, said), NOW)
            if isinstance(answer, Charged):
                held = list(answer.quotas)
                there.append(said)
            assert _used(held, there) == [dict(quota.used) for quota in held]
        elif there:
            index = said[0] % len(there)
            wanted = replace(said[1], active_deadline=there[index].active_deadline)
            answer = charge(held, Request(UPDATE, wanted, there[index], RESIZE), NOW)
            if isinstance(answer, Charged):
                there[index] = wanted
                # Never less than what there is: what shrinks is given back by the count below.
                for quota, used in zip(answer.quotas, _used(held, there), strict=True):
                    assert not exceeded(used, quota.used)
        held = [
            replace(quota, used=used) for quota, used in zip(held, _used(held, there), strict=True)
        ]
        for quota in held:
            assert not exceeded(quota.used, quota.hard)


@given(quotas(), st.permutations(range(5)), st.lists(pods(), min_size=5, max_size=5))
def test_the_order_of_pods_does_not_matter_for_what_is_used(
    held: list[ResourceQuota], order: list[int], made: list[CountedPod]
) -> None:
    assert _used(held, made) == _used(held, [made[index] for index in order])


@given(quotas(), pods())
def test_a_refusal_says_who_refuses_and_charges_nobody(
    held: list[ResourceQuota], pod: CountedPod
) -> None:
    answer = charge(held, Request(CREATE, pod), NOW)
    if isinstance(answer, Refused):
        assert answer.quota in [quota.name for quota in held]
        assert answer.quota in answer.message
    else:
        for before, after in zip(held, answer.quotas, strict=True):
            more = subtract(after.used, before.used)
            charged = answer.charged.get(before.name, {})
            assert {name: one for name, one in more.items() if not one.is_zero} == dict(charged)


def _used(held: list[ResourceQuota], there: list[CountedPod]) -> list[dict[str, Quantity]]:
    return [in_use(quota, there, NOW) for quota in held]


def test_sums_keep_no_trace_of_the_order() -> None:
    a, b = {"cpu": Quantity.parse("100m")}, {"cpu": Quantity.parse("1")}
    assert add(a, b) == add(b, a)
