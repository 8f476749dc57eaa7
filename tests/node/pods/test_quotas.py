"""Quotas of a live node: charged with the admission, computed from the record."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.agent.objects import Objects, checked
from pinfold.core.pod.api import PodError
from pinfold.node.pod_table import UnknownPodError
from pinfold.node.pods.quotas import quotas_of
from pinfold.ports.errors import StoreError
from pinfold.ports.records import ObjectKey, PodPhase
from tests.scenes.manager_harness import Harness, manifest, run_virtually
from tests.scenes.mortal_harness import MortalHarness, every_death, until_dead

OURS = "pinfold.dev/exclusive-cpus"
KEY = ObjectKey("ResourceQuota", "default", "q")


def quota(name: str = "q", **hard: str) -> dict[str, Any]:
    names = {"exclusive": OURS}
    spec = {"hard": {names.get(key, key): amount for key, amount in hard.items()}}
    return {"kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


async def apply(node: Harness, *manifests: dict[str, Any]) -> None:
    for one in manifests:
        await Objects(node.books).apply(one)


def used(node: Harness) -> dict[str, str]:
    """What is in use of the first quota."""
    found = quotas_of(node.books.view, lambda: 0.0).quotas
    return {name: str(one) for name, one in found[0].used.items()} if found else {}


async def run(node: Harness, name: str, *cpus: str) -> str | None:
    record = await node.admit(manifest(name, *cpus))
    assert isinstance(record.reason, str | None)
    return record.reason


def test_a_pod_beyond_the_quota_is_rejected_and_has_nothing() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        await apply(node, quota(exclusive="3"))
        assert await run(node, "a", "2") is None
        record = await node.admit(manifest("b", "2"))
        assert (record.phase, record.reason) == (PodPhase.REJECTED, "Forbidden")
        assert record.message == (
            f'pods "b" is forbidden: exceeded quota: q, requested: {OURS}=2, used: {OURS}=2, '
            f"limited: {OURS}=3"
        )
        assert await run(node, "c", "1") is None
        assert used(node) == {OURS: "3"}
        node.check()
        await node.manager.release("a")
        assert used(node) == {OURS: "1"}
        assert await run(node, "b", "2") is None

    run_virtually(scene())


def test_it_survives_a_restart() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        await apply(node, quota(exclusive="3"))
        await run(node, "a", "2")
        before = used(node)
        await node.kill()
        await node.start()
        assert used(node) == before == {OURS: "2"}
        assert await run(node, "b", "2") == "Forbidden"
        await Objects(node.books).delete(KEY)
        await node.kill()
        await node.start()
        assert await run(node, "b", "2") is None

    run_virtually(scene())


def test_two_pods_at_once_do_not_both_have_the_last_cpus() -> None:
    async def scene() -> None:
        node = Harness(machine="1s8c2t")
        await node.start()
        await apply(node, quota(exclusive="4"))
        reasons = await asyncio.gather(*(run(node, f"p{n}", "2") for n in range(4)))
        assert sorted(reason or "" for reason in reasons) == ["", "", "Forbidden", "Forbidden"]
        assert used(node) == {OURS: "4"}

    run_virtually(scene())


def test_a_resize_is_charged_before_it_is_granted() -> None:
    async def scene() -> None:
        node = Harness(machine="1s8c2t")
        await node.start()
        await apply(node, quota(exclusive="5"))
        for name in ("a", "b"):
            await run(node, name, "2")
        resize = node.manager.resizing.resize
        first = await resize("a", None, 3)
        assert first.decision.feasible
        # It is charged as soon as it is begun.
        assert used(node) == {OURS: "5"}
        assert first.moving is not None
        await first.moving.ended()
        refused = await resize("b", None, 3)
        assert refused.decision.reason == "Forbidden"
        assert "requested: pinfold.dev/exclusive-cpus=1" in (refused.decision.message or "")
        assert refused.decision.before == refused.decision.after
        back = await resize("a", None, 2)
        assert back.moving is not None
        await back.moving.ended()
        assert used(node) == {OURS: "4"}
        again = await resize("b", None, 3)
        assert again.moving is not None
        await again.moving.ended()
        node.check()

    run_virtually(scene())


def test_what_has_ended_counts_as_an_object_alone() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        await apply(node, quota(**{"pods": "1", "count/pods": "2"}))
        await node.admit(manifest("job", "1", restartPolicy="Never"))
        assert await run(node, "other", "1") == "Forbidden"
        [status] = node.runtime.known()
        node.runtime.exit(status.id, 0)
        await node.settle()
        assert used(node) == {"pods": "0", "count/pods": "1"}
        assert await run(node, "other", "1") is None
        await node.manager.release("other")
        # One in the place of one that has ended is not another object.
        assert await run(node, "job", "1") is None

    run_virtually(scene())


def test_a_quota_that_is_already_exceeded_ends_nobody() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        await run(node, "a", "3")
        await apply(node, quota(exclusive="1"))
        assert "uid-a" in node.books.view.pods.active
        assert used(node) == {OURS: "3"}
        assert await run(node, "b", "1") == "Forbidden"
        assert await run(node, "shared", "500m") is None

    run_virtually(scene())


def test_a_pod_does_not_say_itself_that_it_has_ended() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        await apply(node, quota(exclusive="1", pods="9"))
        ended = {"phase": "Succeeded", "qosClass": "Burstable"}
        deleted = {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
        for name, more in (("a", {"status": ended}), ("b", {"metadata": deleted})):
            pod = manifest(name, "2")
            pod["metadata"] |= more.get("metadata", {})
            pod["status"] = more.get("status", {})
            assert (await node.admit(pod)).reason == "Forbidden"
            pod["spec"] = manifest(name, "1")["spec"]
            pod["metadata"]["name"] = "c"
        assert (await node.admit(pod)).reason is None
        assert used(node) == {OURS: "1", "pods": "1"}

    run_virtually(scene())


def test_a_scope_without_a_meaning_lets_nobody_in_and_is_no_error() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        await run(node, "a", "1")
        bad = quota(exclusive="4")
        one = {"scopeName": "PriorityClass", "operator": "In", "values": ["bad value!"]}
        bad["spec"]["scopeSelector"] = {"matchExpressions": [one]}
        await apply(node, bad)
        assert used(node) == {}
        record = await node.admit(manifest("b", "1"))
        assert record.reason == "Forbidden"
        assert "error matching scopes of quota q" in (record.message or "")
        answer = await node.manager.resizing.resize("a", None, 2)
        assert answer.decision.reason == "Forbidden"

    run_virtually(scene())


def test_a_field_that_only_quotas_read_is_named_where_there_is_one() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        bad = manifest("a", "1", affinity={"podAffinity": 7})
        await node.admit(bad)
        await apply(node, quota(exclusive="4"))
        assert used(node) == {OURS: "1"}
        bad["metadata"] = {"name": "b", "uid": "uid-b"}
        with pytest.raises(PodError, match=r"spec\.affinity\.podAffinity: must be a mapping"):
            await node.admit(bad)

    run_virtually(scene())


def test_what_cannot_be_written_is_not_in_force() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        node.store.faults.fail_all = True
        with pytest.raises(StoreError):
            await apply(node, quota(exclusive="0"))
        node.store.faults.fail_all = False
        assert node.books.view.objects == node.store.objects == {}
        assert await run(node, "a", "1") is None

    run_virtually(scene())


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"kind": "Secret"}, "kind: Unsupported value: 'Secret': ResourceQuota"),
        (quota(nonsense="1"), "must be a standard resource type"),
        ({"kind": "ResourceQuota", "spec": {}}, "metadata.name: Required value"),
        ({"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": []}, "spec: must be"),
    ],
)
def test_a_bad_object_is_named_and_not_kept(wrong: dict[str, Any], problem: str) -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        with pytest.raises(PodError, match=problem.replace("[", r"\[")):
            await apply(node, wrong)
        assert node.store.objects == {}
        with pytest.raises(UnknownPodError, match="there is no ResourceQuota default/q"):
            await Objects(node.books).delete(KEY)

    run_virtually(scene())


def test_a_source_has_the_objects_that_it_wants_in_one_change() -> None:
    async def scene() -> None:
        node = Harness()
        await node.start()
        objects = Objects(node.books)
        await apply(node, quota("mine", pods="9"))
        made = [checked(quota(name, pods="1"), f"/folder/{name}.yaml")[1] for name in ("a", "b")]
        wanted = [one for one in made if one is not None]
        await objects.follow(wanted)
        generation = node.store.generation
        await objects.follow(wanted)
        assert node.store.generation == generation
        await objects.follow(wanted[:1])
        assert sorted(key.name for key in node.store.objects) == ["a", "mine"]
        await objects.follow([])
        assert [key.name for key in node.store.objects] == ["mine"]

    run_virtually(scene())


def test_the_agent_dies_at_each_call_and_never_more_is_used() -> None:
    """Whatever it was doing: what is used is what there is, and never beyond what is hard."""

    async def life(node: MortalHarness) -> None:
        await node.start()
        if KEY not in node.books.view.objects:
            await apply(node, quota(exclusive="3"))
        for name, cpus in (("a", "2"), ("b", "2"), ("c", "1")):
            if f"uid-{name}" not in node.books.view.pods.active:
                await node.admit(manifest(name, cpus), wait=False)
            await node.settle()
        if "uid-a" in node.books.view.pods.active:
            await node.manager.release("a")
        await node.admit(manifest("d", "2"), wait=False)
        await node.settle()

    async def dies(at: int, *, after: bool) -> bool:
        node = MortalHarness()
        node.arm(at, after=after)
        died = await until_dead(node, life(node))
        await node.kill()
        node.arm(0, after=False)
        await node.start()
        await node.settle()
        node.check()
        exclusive = len(node.books.view.state.ledger.exclusive)
        kept = KEY in node.books.view.objects
        assert exclusive <= 3 or not kept
        if kept:
            assert used(node) == {OURS: str(exclusive)}
        return died

    assert run_virtually(every_death(dies)) > 20


steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.sampled_from("abcd"), st.sampled_from(["1", "2", "500m"])),
        st.tuples(st.just("release"), st.sampled_from("abcd"), st.just("")),
        st.tuples(st.just("resize"), st.sampled_from("abcd"), st.sampled_from(["1", "2", "3"])),
        st.tuples(st.just("restart"), st.just(""), st.just("")),
    ),
    max_size=8,
)


@given(steps)
def test_used_is_what_is_owned_whatever_comes(taken: list[tuple[str, str, str]]) -> None:
    async def scene() -> None:
        node = Harness(machine="1s8c2t")
        await node.start()
        await apply(node, quota(exclusive="4"))
        for what, name, cpus in taken:
            active = f"uid-{name}" in node.books.view.pods.active
            if what == "admit" and not active:
                await node.admit(manifest(name, cpus))
            elif what == "release" and active:
                await node.manager.release(name)
            elif what == "resize" and active:
                answer = await node.manager.resizing.resize(name, None, float(cpus))
                if answer.moving is not None:
                    await answer.moving.ended()
            elif what == "restart":
                await node.kill()
                await node.start()
            await node.settle()
            owned = len(node.books.view.state.ledger.exclusive)
            assert used(node) == {OURS: str(owned)}
            assert owned <= 4
            node.check()
        assert json.loads(node.store.objects[KEY].manifest)["kind"] == "ResourceQuota"

    run_virtually(scene())
