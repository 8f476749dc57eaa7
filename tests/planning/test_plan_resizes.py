"""Resizes of a plan: which pod is meant, what is answered, and the plan afterwards."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold import CPUSet, NodeConfig, Planner, ResizeWish, parse_short_form
from pinfold.admission.moves import move_plan_of
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.moves.resize import (
    INCONSISTENT,
    NO_BASELINE,
    NOT_ALLOCATED,
    PROHIBITED,
    RESIZE_REASONS,
)
from pinfold.core.moves.resize_wish import ResizeError
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod
from pinfold.documents.move_plan import MovePlan
from pinfold.planning.planner import Plan
from tests.scenes.planned_pods import planned_pod as pod
from tests.scenes.published_schemas import plan_document


def placed(*pods: Pod, machine: str = "2s4c2t", **config: Any) -> Plan:
    usual: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": CPUSet([0])}
    return Planner(parse_short_form(machine), NodeConfig(**usual | config)).plan(pods)


def after(plan: Plan, *wishes: str) -> Plan:
    for wish in wishes:
        plan = plan.planner.resize(plan, ResizeWish.parse(wish))
    return plan


def answers(plan: Plan, *wishes: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plan_document(after(plan, *wishes))["resizes"]
    return found


@pytest.mark.parametrize(
    ("text", "pod_name", "container", "cpus"),
    [
        ("pod/db=6", "db", None, 6),
        ("pods/db/server=6", "db", "server", 6),
        ("pod/trading/db/server=1", "trading/db", "server", 1),
        ("db=12", "db", None, 12),
        ("trading/db=2", "trading/db", None, 2),
        ("trading/db/server=2", "trading/db", "server", 2),
        ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6=2", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", None, 2),
        ("pod=2", "pod", None, 2),
    ],
)
def test_what_is_meant(text: str, pod_name: str, container: str | None, cpus: int) -> None:
    assert ResizeWish.parse(text) == ResizeWish(pod_name, container, cpus)


def test_a_pod_of_another_namespace_may_be_written_as_kubectl_would() -> None:
    there = Pod("u", "p1", "a")
    wish = ResizeWish.parse("pod/a/p1=4")
    assert wish.meant_among([there]) == ResizeWish("a/p1", None, 4)
    named = Pod("v", "a")
    assert wish.meant_among([there, named]) == wish, "a pod of that name comes first"


@pytest.mark.parametrize(
    "text",
    [
        *("", "=", "pod/db", "pod/db=", "pod/db=0", "pod/db=-1", "pod/db=1.5", "pod/db=500m"),
        *("pod/db=+1", "pod/db=1_0", "pod/db=٣", "pod/db= 3", "pod/db=1000000", "=3", "pod/=3"),
        *(
            "pod//db=3",
            "pod/db/=3",
            "pod/a/b/c/d=3",
            "/=3",
            "pod/../../x=3",
            "pod/db=" + "9" * 5000,
        ),
    ],
)
def test_what_cannot_be_meant(text: str) -> None:
    with pytest.raises(ResizeError, match="write pod/NAME"):
        ResizeWish.parse(text)


def test_a_name_that_is_nobodys_or_several_ones() -> None:
    plan = placed(pod("a", c=1), pod("b", c=1, d=1))
    with pytest.raises(ResizeError, match=r"no pod 'x' in the manifests; there are a, b$"):
        after(plan, "pod/x=2")
    with pytest.raises(ResizeError, match=r"'b' has several containers; name one of c, d$"):
        after(plan, "pod/b=2")
    with pytest.raises(ResizeError, match=r"'a' has no container 'd'; it has c$"):
        after(plan, "pod/a/d=2")
    twins = [
        pod_from_api({"metadata": {"name": "a", "namespace": n}, "spec": {"containers": [one]}})
        for n, one in (("x", {"name": "c"}), ("y", {"name": "c"}))
    ]
    with pytest.raises(ResizeError, match=r"several pods 'a'; say which one: x/a, y/a$"):
        after(placed(*twins), "pod/a=2")
    assert after(placed(*twins), "y/a=2").resizes[0].pod.namespace == "y"
    assert after(placed(*twins), "pod/y/a=2").resizes[0].pod.namespace == "y"
    with pytest.raises(ResizeError, match=r"no pod 'z' .* are x/a, y/a; pod a of .* z is z/a=2$"):
        after(placed(*twins), "pod/z/a=2")
    many = placed(*(pod(f"p{n}", c=1) for n in range(12)))
    with pytest.raises(ResizeError, match="p9 and 2 more"):
        after(many, "pod/x=2")
    with pytest.raises(ResizeError, match="there are none"):
        after(placed(), "pod/x=2")


def test_resizes_go_on_from_each_other() -> None:
    plan = placed(pod("a", c=2), pod("b", c=2))
    grown = after(plan, "pod/a=4")
    assert [str(c.cpus) for p in grown.pods for c in p.containers] == ["2-3,6-7", "4-5"]
    assert str(grown.shared) == "0-1,8-15"
    assert str(grown.pods[0].pod.containers[0].requests["cpu"]) == "4"
    again = after(grown, "pod/b=4", "pod/a=2")
    assert [str(c.cpus) for p in again.pods for c in p.containers] == ["2-3", "1,4-5,8"]
    assert again.ledger.violations() == []
    assert (plan.resizes, str(plan.shared)) == ((), "0-1,6-15"), "the one before is as it was"
    assert [r["after"] for r in plan_document(again)["resizes"]] == ["2-3,6-7", "1,4-5,8", "2-3"]


def test_an_answer_is_a_row_with_its_moves() -> None:
    (first, second) = answers(placed(pod("a", c=2)), "pod/a=4", "pod/a=1")
    moves = first.pop("moves")
    assert first == {
        "pod": "default/a",
        "container": "c",
        "cpus": 4,
        "feasible": True,
        "reason": None,
        "message": None,
        "before": "2-3",
        "after": "2-5",
    }
    assert [step["kind"] for step in moves["steps"]] == ["shrink-pool", "widen", "announce"]
    assert "moves" not in second
    assert (second["feasible"], second["reason"]) == (False, PROHIBITED)
    assert second["before"] == second["after"] == "2-5"
    assert "resizes" not in plan_document(placed(pod("a", c=2)))


@pytest.mark.parametrize("policy", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ("pod/a/c=3", None),
        ("pod/a/side=3", None),
        ("pod/a/c=2", None),
        ("pod/a/c=1", PROHIBITED),
        ("pod/a/c=99", NOT_ALLOCATED),
        ("pod/a/setup=4", INCONSISTENT),
        ("pod/shares=2", INCONSISTENT),
        ("pod/half=2", INCONSISTENT),
        ("pod/large=2", INCONSISTENT),
    ],
)
def test_the_answers_are_the_proposals_whatever_the_policy_is_called(
    policy: str, wish: str, reason: str | None
) -> None:
    own = OwnPolicies() if policy == "dynamic" else None
    shares = pod_from_api({"metadata": {"name": "shares"}, "spec": {"containers": [{"name": "c"}]}})
    pods = (pod("a", setup_=2, side=1, c=2), shares, pod("half", c="1500m"), pod("large", c=99))
    (answer,) = answers(placed(*pods, cpu_manager_policy=policy, own=own), wish)
    assert answer["reason"] == reason
    assert answer["feasible"] is (reason is None)
    assert (answer["message"] is None) is (reason is None)


def test_nobody_has_cpus_of_its_own_under_policy_none() -> None:
    (answer,) = answers(placed(pod("a", c=2), cpu_manager_policy="none"), "pod/a=4")
    assert (answer["reason"], answer["before"]) == (INCONSISTENT, "")


def test_the_topology_managers_policy_holds() -> None:
    pods = (pod("a", c=4), pod("b", c=2))
    strict = {"topology_manager_policy": "single-numa-node"}
    (refused,) = answers(placed(*pods, **strict), "pod/a=6")
    assert refused["reason"] == NOT_ALLOCATED
    assert "TopologyAffinityError" in refused["message"]
    assert answers(placed(*pods), "pod/a=6")[0]["feasible"]


def test_a_refusal_changes_nothing() -> None:
    plan = placed(pod("a", c=4), pod("b", c=2))
    refused = after(plan, "pod/a=2", "pod/b=99")
    assert refused.state is plan.state
    assert refused.pods == plan.pods


@pytest.mark.parametrize("own", [None, OwnPolicies()])
def test_what_a_pod_wishes_for_counts_with_a_section_of_our_own(own: OwnPolicies | None) -> None:
    said = {"resize-below-baseline.pinfold.dev/pod": "true", "keep-cpus.pinfold.dev/pod": "5"}
    plan = placed(pod("a", c=4, annotations=said), own=own)
    first, second = answers(plan, "pod/a=2", "pod/a=3")
    if own is None:
        assert (first["reason"], second["reason"]) == (PROHIBITED, PROHIBITED)
        return
    assert first["after"] == "4-5"
    assert (second["feasible"], second["before"]) == (True, "4-5")
    assert CPUSet.parse(second["after"]) > CPUSet.parse("4-5")
    assert answers(plan, "pod/a=2", "pod/a=1")[1]["after"] == "5", "the baseline has shrunk, too"


WISHES = st.lists(
    st.builds("pod/p{}/{}={}".format, st.integers(0, 3), st.sampled_from("cd"), st.integers(1, 9)),
    max_size=6,
)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=4, max_size=4), wishes=WISHES, cores=st.booleans()
)
@settings(max_examples=60)
def test_whatever_is_asked_the_plan_is_whole(
    *, sizes: list[int], wishes: list[str], cores: bool
) -> None:
    options = {"full-pcpus-only": "true"} if cores else {}
    pods = [pod(f"p{n}", c=size, d=1 + cores) for n, size in enumerate(sizes)]
    plan = placed(*pods, cpu_manager_policy_options=options)
    for wish in wishes:
        before, plan = plan, after(plan, wish)
        answer = plan.resizes[-1].decision
        assert plan.ledger.violations() == []
        assert answer.reason is None or answer.reason in RESIZE_REASONS
        assert answer.reason != NO_BASELINE
        if not answer.feasible:
            assert plan.state is before.state
            continue
        shown = {
            (p.pod.uid, c.name): c.cpus for p in plan.pods for c in p.containers if c.exclusive
        }
        held = plan.ledger.assignments
        assert shown == {(u, n): cpus for u, cs in held.items() for n, cpus in cs.items()}
        told = plan_document(plan)["resizes"][-1]
        assert len(CPUSet.parse(told["after"])) == told["cpus"]
        assert plan.resizes[-1].moves is not None
        end = plan.resizes[-1].moves.end
        assert end.placed.get(answer.owner, answer.after) == answer.after
        assert end.pool == plan.ledger.default


def test_its_moves_are_read_again() -> None:
    plan = after(placed(pod("a", c=2)), "pod/a=6", "pod/a=3")
    told = [msgspec.convert(one["moves"], MovePlan) for one in plan_document(plan)["resizes"]]
    assert [move_plan_of(one) for one in told] == [answer.moves for answer in plan.resizes]
