"""The past of a kubelet's pods, whose containers come one by one and are decided about so."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.machine.short_form import parse_short_form
from pinfold.documents.api import HistoryEntry
from pinfold.documents.live.event import Whole
from pinfold.planning.planner import Planner
from pinfold.ports.nri import RefusedError
from pinfold.views.past import past
from pinfold.web.documents import history_document
from tests.scenes.lifecycle_harness import LifecycleHarness, guaranteed
from tests.scenes.manager_harness import run_virtually
from tests.scenes.told_node import explained, whole_now

STEPS = ("pod", "run", "run", "run", "end", "resize")


def owners(whole: Whole) -> dict[str, str]:
    """The CPUs of each container that has some for itself."""
    return {
        f"{pod.uid}/{one.name}": one.cpus
        for pod in whole.status.pods
        for one in pod.containers
        if one.exclusive
    }


async def step(h: LifecycleHarness, choice: random.Random, number: int) -> None:
    """A pod comes, starts a container, is resized or ends, as a whole."""
    what = choice.choice(STEPS)
    pods = list(h.node.pods.values())
    running = [one for one in h.node.containers.values() if one.runs]
    if what == "pod" and len(pods) < 5:
        await h.pod(f"p{number}", "guaranteed")
    elif what == "run" and pods:
        pod = choice.choice(pods)
        names = {one.seen.name for one in running if one.pod is pod}
        if free := [name for name in ("main", "side", "third") if name not in names]:
            await h.run(pod, free[0], guaranteed(choice.choice((1, 2, 3, 0.5))))
    elif what == "end" and pods:
        await h.node.stop_pod(choice.choice(pods))
    elif what == "resize" and running:
        await h.node.resize(choice.choice(running), guaranteed(choice.choice((1, 2, 3))))


async def lived(seed: int, length: int) -> tuple[list[tuple[float, Whole]], list[HistoryEntry]]:
    """What was told after each step, when that was, and the history."""
    choice = random.Random(seed)  # noqa: S311 - reproducible
    h = LifecycleHarness(machine="1s8c1t")
    h.describe = partial(explained, Planner(parse_short_form(h.machine), h.config))
    await h.start()
    moments = []
    for number in range(length):
        with suppress(RefusedError):
            await step(h, choice, number)
        if h.node.plugin is None:
            await h.start()
        await h.until_moved()
        moments.append((h.clock(), whole_now(h)))
    told = history_document(await h.store.history(limit=1000)).entries
    await h.kill()
    return moments, msgspec.json.decode(msgspec.json.encode(told), type=list[HistoryEntry])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 30))
def test_the_past_is_what_was_told_then(seed: int, length: int) -> None:
    moments, entries = run_virtually(lived(seed, length))
    now = moments[-1][1]
    for at, then in moments:
        found = past(now, entries, at)
        assert owners(found.whole) == owners(then), f"at {at}"
        assert found.whole.status.shared == then.status.shared
