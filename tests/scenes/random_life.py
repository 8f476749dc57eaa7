"""Random lives of a kubelet's pods: they begin, change, end and are missed, beside an agent."""

from __future__ import annotations

import random
from collections.abc import Callable

from pinfold.ports.nri import ContainerState, Resources
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness

NAMES = ("main", "side", "init")
STEPS = (
    *("run", "run", "run", "pod", "pod", "stop", "restart", "remove", "end", "unheard", "resize"),
    "agent",
)


async def step(
    h: LifecycleHarness,
    choice: random.Random,
    *,
    begin: Callable[[], tuple[str, str]],
    mixed: Callable[[], bool] = lambda: False,
    amount: Callable[[], Resources],
    again: Callable[[Resources], Resources],
) -> None:
    """Let one thing happen that can happen now.

    Args:
        h: the node.
        choice: chooses what, and with whom.
        begin: prepares a new pod; gives its name and QoS class.
        mixed: whether its containers are mixed.
        amount: what a Guaranteed container is given.
        again: what one is created with that is started again, from what it had.
    """
    what = choice.choice(STEPS)
    pods = list(h.node.pods.values())
    containers = list(h.node.containers.values())
    running = [one for one in containers if one.runs]
    ended = [one for one in containers if one.seen.state is ContainerState.STOPPED]
    if what == "pod" and len(pods) < 6:
        await h.pod(*begin(), mixed=mixed())
    elif what == "run" and pods:
        pod = choice.choice(pods)
        name = choice.choice(NAMES)
        if not any(one.pod is pod and one.seen.name == name and one.runs for one in containers):
            burstable = "burstable" in pod.cgroup_parent
            await h.run(pod, name, BEST_EFFORT if burstable else amount())
    elif what == "stop" and running:
        await h.node.stop(choice.choice(running))
    elif what == "restart" and running:
        one = choice.choice(running)
        await h.node.stop(one)
        await h.run(one.pod, one.seen.name, again(one.seen.resources))
    elif what == "remove" and ended:
        await h.node.remove(choice.choice(ended))
    elif what == "end" and pods:
        await h.node.stop_pod(choice.choice(pods))
    elif what == "unheard" and pods:
        with h.unheard():
            await h.node.stop_pod(choice.choice(pods))
        await h.look_twice()
    elif what == "resize" and running:
        one = choice.choice(running)
        if "burstable" not in one.pod.cgroup_parent:
            await h.node.resize(one, amount())
    elif what == "agent":
        await h.kill()
        await h.start()
