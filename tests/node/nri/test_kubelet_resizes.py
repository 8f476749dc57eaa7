"""A kubelet's resizes in place: answered at once, made by moves, no CPU ever with two owners."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.nri.resizes import AGAIN, ANSWERED
from pinfold.planning.fake_nri import FakeContainer
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.nri import PodSandbox, RefusedError, Resources
from tests.scenes.kubelet_node import watch
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed, story

GRACE = "scale-down-grace-period.pinfold.dev/pod"
BELOW = "resize-below-baseline.pinfold.dev/pod"
KEEP = "keep-cpus.pinfold.dev/container.main"


async def annotated(h: LifecycleHarness, name: str, **annotations: str) -> PodSandbox:
    """A Guaranteed pod with these annotations."""
    pod = replace(await h.pod(name), annotations=annotations)
    h.node.pods[pod.id] = pod
    return pod


async def an_owner(
    h: LifecycleHarness, name: str = "db", cpus: int = 2, grace: int = 0, **more: str
) -> FakeContainer:
    """A container that is told for so many seconds before it loses CPUs."""
    pod = await annotated(h, name, **{GRACE: str(grace)}, **more)
    return await h.run(pod, "main", guaranteed(cpus))


async def told(h: LifecycleHarness, kind: str) -> list[dict[str, Any]]:
    """What the history says, the oldest first."""
    entries = await h.store.history(limit=1000)
    return [json.loads(one.document) for one in reversed(entries) if one.kind == kind]


@story
async def test_a_resize_in_place(h: LifecycleHarness) -> None:
    shared = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    owner = await h.run(await h.pod("db"), "main", guaranteed(2))
    await h.node.resize(owner, guaranteed(4))
    assert (owner.kernel, shared.kernel) == (CPUSet([2, 3, 4, 5]), CPUSet([1, 6, 7]))
    assert owner.seen.resources.cpu_quota == -1
    for cpus, why in (
        (1.5, "inconsistentCPUAllocationError: container main has exclusive CPUs"),
        (1, "prohibitedCPUAllocationError: container main was admitted with 2 CPUs .2-3."),
        (8, "resizeAllocateCPUsError: UnexpectedAdmissionError: .*not enough cpus"),
    ):
        with pytest.raises(RefusedError, match=why):
            await h.node.resize(owner, guaranteed(cpus))
        assert (owner.kernel, shared.kernel) == (CPUSet([2, 3, 4, 5]), CPUSet([1, 6, 7]))
    await h.node.resize(owner, guaranteed(2))
    assert (owner.kernel, shared.kernel) == (CPUSet([2, 3]), CPUSet([1, 4, 5, 6, 7]))


@story
async def test_a_shrink_is_answered_at_once_and_made_when_the_application_was_told(
    h: LifecycleHarness,
) -> None:
    web = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    owner = await an_owner(h, grace=5)
    await h.node.resize(owner, guaranteed(4))
    await h.settle()
    strangers, loop = watch(h), asyncio.get_running_loop()
    began = loop.time()
    await h.node.resize(owner, guaranteed(2))
    assert loop.time() - began < ANSWERED
    assert (owner.kernel, web.kernel) == (CPUSet([2, 3, 4, 5]), CPUSet([1, 6, 7]))
    assert owner.seen.resources.cpus == "2-5"
    await asyncio.sleep(4.5)
    assert owner.kernel == CPUSet([2, 3, 4, 5])
    await asyncio.sleep(1)
    assert (owner.kernel, web.kernel) == (CPUSet([2, 3]), CPUSet([1, 4, 5, 6, 7]))
    await h.settle()
    assert owner.seen.resources.cpus == "2-3", "what is on record follows, unasked"
    assert (owner.seen.resources.cpu_quota, owner.seen.resources.cpu_shares) == (-1, 2048)
    assert strangers == []


@pytest.mark.parametrize("slowness", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("version", [1, 2])
def test_what_a_runtime_writes_late_lets_nobody_onto_others_cpus(
    slowness: float, version: int
) -> None:
    @story
    async def run(h: LifecycleHarness) -> None:
        h.node.version = version
        await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
        side = await h.run(await h.pod("side", "burstable"), "main", Resources(cpu_shares=100))
        owner = await an_owner(h)
        strangers, h.node.slowness = watch(h), slowness
        for cpus in (4, 2, 3, 5, 2):
            change = asyncio.create_task(h.node.resize(side, Resources(cpu_shares=100 + cpus)))
            await h.node.resize(owner, guaranteed(cpus))
            await change
        await h.settle()
        assert (str(owner.kernel), strangers) == ("2-3", [])
        assert h.recorded() == h.kernel()

    run()


@story
async def test_a_grow_is_in_the_answer(h: LifecycleHarness) -> None:
    owner = await an_owner(h)
    await h.node.resize(owner, guaranteed(4))
    assert owner.seen.resources.cpus == "2-5"
    assert (await told(h, "resized"))[-1] == {
        "container": "main",
        "cpus": 4,
        "before": "2-3",
        "after": "2-5",
        "reason": None,
        "message": None,
    }


@story
async def test_two_shrinks_in_a_row_and_a_grow_meanwhile(h: LifecycleHarness) -> None:
    owner = await an_owner(h, cpus=1, grace=5)
    await h.node.resize(owner, guaranteed(5))
    most = owner.kernel
    for cpus in (3, 2):
        await h.node.resize(owner, guaranteed(cpus))
        await asyncio.sleep(3)
        assert owner.kernel == most, "the second begins the time anew"
    await h.node.resize(owner, guaranteed(4))
    await asyncio.sleep(4)
    assert owner.kernel == most, "a grow that ends below the number before does, too"
    await asyncio.sleep(2)
    assert len(owner.kernel or ()) == 4
    await h.node.resize(owner, guaranteed(2))
    await h.node.resize(owner, guaranteed(4))
    assert h.books.view.move is None, "nothing is taken any more"
    await h.settle()
    assert len(owner.kernel or ()) == 4


@story
async def test_who_finds_other_moves_under_way_waits_for_them(h: LifecycleHarness) -> None:
    first = await an_owner(h, "first", grace=5)
    await h.node.resize(first, guaranteed(3))
    other = await an_owner(h, "other", cpus=1)
    await h.node.resize(first, guaranteed(2))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await h.node.resize(other, guaranteed(2))
    assert loop.time() - began == pytest.approx(ANSWERED, abs=0.1)
    assert len(other.kernel or ()) == 1
    late = await h.run(await h.pod("late"), "main", guaranteed(1))
    assert late.runs, "nobody who is created has to wait"
    await asyncio.sleep(6)
    assert (len(first.kernel or ()), len(other.kernel or ())) == (2, 2)


@story
async def test_a_refusal_that_is_asked_for_again_and_again_is_one_entry(
    h: LifecycleHarness,
) -> None:
    owner = await an_owner(h)
    text = "prohibitedCPUAllocationError: container main was admitted with 2 CPUs"
    asked = len(h.kubelet.asked)
    for _ in range(100):
        with pytest.raises(RefusedError, match=text):
            await h.node.resize(owner, guaranteed(1))
    assert len(h.kubelet.asked) - asked <= 1
    assert [one["reason"] for one in await told(h, "infeasible")] == [
        "prohibitedCPUAllocationError"
    ]
    assert len(h.problems) == 1
    # Of another state it is asked anew, and said again only if it is something else.
    await h.run(await h.pod("other"), "main", guaranteed(4))
    for cpus in (1, 5, 5):
        with pytest.raises(RefusedError):
            await h.node.resize(owner, guaranteed(cpus))
    assert [one["cpus"] for one in await told(h, "infeasible")] == [1, 5]
    await h.node.resize(owner, guaranteed(3))
    assert len(owner.kernel or ()) == 3


@story
async def test_what_a_pod_has_agreed_to(h: LifecycleHarness) -> None:
    owner = await an_owner(h, cpus=4, grace=0, **{BELOW: "true", KEEP: "5"})
    await h.node.resize(owner, guaranteed(2))
    assert len(owner.kernel or ()) == 2
    assert 5 in (owner.kernel or ())


@story
async def test_resizes_of_those_who_share_ask_nobody(h: LifecycleHarness) -> None:
    web = await h.run(await h.pod("web", "burstable"), "main", Resources(cpu_shares=1024))
    half = await h.run(await h.pod("half"), "main", guaranteed(0.5))
    await h.node.resize(web, Resources(cpu_shares=2048))
    await h.node.resize(half, guaranteed(1.5))
    with pytest.raises(RefusedError, match=r"inconsistentCPUAllocationError: .*shared pool"):
        await h.node.resize(half, guaranteed(2))
    assert half.kernel == web.kernel


# ---------------------------------------------------------------- what comes in between, and after


@story
async def test_a_change_of_memory_while_the_application_is_told(h: LifecycleHarness) -> None:
    owner = await an_owner(h, grace=5)
    await h.node.resize(owner, guaranteed(4))
    await h.node.resize(owner, guaranteed(2))
    await h.node.resize(owner, replace(guaranteed(2), memory=2 << 30))
    assert owner.kernel == CPUSet([2, 3, 4, 5])
    assert h.books.view.move is not None
    await h.settle()
    assert owner.kernel == CPUSet([2, 3])


@pytest.mark.parametrize("how", ["stop", "again", "remove", "end", "unheard"])
def test_who_ends_while_it_is_told_holds_nothing(how: str) -> None:
    @story
    async def run(h: LifecycleHarness) -> None:
        owner = await an_owner(h, grace=5)
        await h.node.resize(owner, guaranteed(4))
        strangers = watch(h)
        await h.node.resize(owner, guaranteed(2))
        if how == "unheard":
            with h.unheard():
                await h.node.stop_pod(owner.pod)
            await h.look_twice()
        elif how == "end":
            await h.node.stop_pod(owner.pod)
        else:
            await h.node.stop(owner)
        if how == "remove":
            await h.node.remove(owner)
        elif how == "again":
            owner = await h.run(owner.pod, "main", guaranteed(2))
            assert owner.kernel == CPUSet([2, 3, 4, 5]), "as the plan says"
        late = await h.run(await h.pod("late"), "main", guaranteed(2))
        await h.settle()
        assert (len(late.kernel or ()), strangers) == (2, [])
        assert h.books.view.move is None
        left = h.books.view.state.ledger.cpus_of("uid-db", "main")
        assert left == (CPUSet([2, 3]) if how in {"stop", "again"} else None)

    run()


@story
async def test_what_an_ended_container_leaves_is_nobody_elses_before_its_moves_are_over(
    h: LifecycleHarness,
) -> None:
    init = await an_owner(h, grace=5)
    await h.node.resize(init, guaranteed(4))
    await h.node.resize(init, guaranteed(2))
    await h.node.stop(init)
    with pytest.raises(RefusedError, match="not enough cpus available"):
        await h.node.create(init.pod, "app", guaranteed(4))
    side = await h.run(init.pod, "side", guaranteed(2))
    assert (side.kernel or CPUSet()).isdisjoint(CPUSet([2, 3, 4, 5]))
    await h.settle()
    assert h.books.view.move is None
    app = await h.run(init.pod, "app", guaranteed(4))
    assert CPUSet([2, 3]) <= (app.kernel or CPUSet()), "now it has what the other has left"


@pytest.mark.parametrize("after", [0.1, 1.0, 7.0])
def test_an_agent_that_is_killed_meanwhile_goes_on(after: float) -> None:
    @story
    async def run(h: LifecycleHarness) -> None:
        web = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
        owner = await an_owner(h, grace=5)
        await h.node.resize(owner, guaranteed(4))
        strangers = watch(h)
        await h.node.resize(owner, guaranteed(2))
        await asyncio.sleep(after)
        await h.kill()
        await h.start()
        await h.settle()
        assert (owner.kernel, web.kernel) == (CPUSet([2, 3]), CPUSet([1, 4, 5, 6, 7]))
        assert strangers == []

    run()


@story
async def test_the_last_word_that_the_kernel_refuses_is_said_again(h: LifecycleHarness) -> None:
    owner = await an_owner(h)
    inner, refused = h.cgroups.place, list[str]()

    async def refusing(key: ContainerKey, placement: Placement) -> str:
        if h.books.view.move is None and not refused:
            refused.append(str(key))
            raise CgroupError(f"{key}: the kernel does not take it")
        return await inner(key, placement)

    h.cgroups.place = refusing  # type: ignore[method-assign] # once
    await h.node.resize(owner, guaranteed(4))
    assert refused == ["uid-db/main"]
    await asyncio.sleep(1)
    assert list(h.books.offline_owners.misplaced) == [owner.key]
    # An agent does that at each look at the CPUs, with every runtime.
    await h.books.settle()
    assert h.books.offline_owners.misplaced == {}
    assert owner.kernel == CPUSet([2, 3, 4, 5])


@story
async def test_a_resize_that_nobody_was_asked_about_is_made_later(h: LifecycleHarness) -> None:
    grows = await an_owner(h, "grows")
    shrinks = await an_owner(h, "shrinks", cpus=1, grace=5)
    await h.node.resize(shrinks, guaranteed(2))
    await h.kill()
    await h.node.resize(grows, guaranteed(3))
    await h.node.resize(shrinks, guaranteed(1))
    await h.start()
    strangers = watch(h)
    await h.settle()
    assert (len(grows.kernel or ()), len(shrinks.kernel or ())) == (3, 1)
    assert CPUSet([2, 3]) <= (grows.kernel or CPUSet())
    assert (h.told, strangers) == ([], [])


@story
async def test_one_that_cannot_be_made_later_is_said_once_and_tried_again(
    h: LifecycleHarness,
) -> None:
    owner = await an_owner(h)
    other = await an_owner(h, "other", cpus=4)
    await h.kill()
    await h.node.resize(owner, guaranteed(4))
    await h.start()
    for _ in range(5):
        await h.settle()
    assert owner.kernel == CPUSet([2, 3])
    (said,) = h.told
    assert said.startswith("db/main: resizeAllocateCPUsError: ")
    assert len(await told(h, "infeasible")) == 1
    await h.node.stop_pod(other.pod)
    await asyncio.sleep(2 * AGAIN)
    assert len(owner.kernel or ()) == 4
    assert owner.seen.resources.cpu_quota == -1


@story
async def test_a_look_that_fails_does_not_end_what_is_made_later(h: LifecycleHarness) -> None:
    owner = await an_owner(h)
    await h.kill()
    await h.node.resize(owner, guaranteed(4))

    def online() -> CPUSet:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    await h.start()
    observers = h.books.observers
    h.books.observers = replace(observers, online=online)
    await asyncio.sleep(2 * AGAIN)
    assert owner.kernel == CPUSet([2, 3])
    assert any("Too many open files" in problem for problem in h.problems)
    h.books.observers = observers
    await asyncio.sleep(2 * AGAIN)
    assert len(owner.kernel or ()) == 4


@story
async def test_a_runtime_that_shows_everything_anew_changes_nothing(h: LifecycleHarness) -> None:
    owner = await an_owner(h, grace=5)
    await h.node.resize(owner, guaranteed(4))
    await h.node.resize(owner, guaranteed(2))
    assert h.node.plugin is not None
    await h.node.connect(h.node.plugin)
    assert owner.kernel == CPUSet([2, 3, 4, 5])
    await h.settle()
    assert (owner.kernel, h.told) == (CPUSet([2, 3]), [])


@story
async def test_a_container_of_which_nothing_is_known(h: LifecycleHarness) -> None:
    owner = await an_owner(h)
    assert h.node.plugin is not None
    stranger = replace(owner.seen, id="another")
    for pod in (owner.pod, replace(owner.pod, uid="another")):
        asked = h.node.plugin.update_container(pod, stranger, guaranteed(4))
        assert await asked == ()
    assert h.books.view.move is None
