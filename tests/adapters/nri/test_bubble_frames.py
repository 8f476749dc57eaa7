"""Pods that have CPUs as a whole, over NRI: real frames, and an API server that says what they are.

Both ends of the runtime's socket speak NRI's frames, and the agent asks the server over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.ports.kubernetes import PODS
from pinfold.ports.nri import PodSandbox, RefusedError, Resources
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.scenes.lifecycle_harness import BEST_EFFORT, GIB, guaranteed
from tests.scenes.waiting import PATIENCE, until
from tests.scenes.whole_pods import WHOLE, whole_pod
from tests.scenes.wired_node import WiredNode, wired_node

APP: Final = whole_pod("app", "6", "2", "1", shared=1, init=("2",), sidecars=("1",))
"""On an empty node of one socket its bubble is 2-7."""
SHARES: Final = Resources(cpu_shares=6144, cpu_quota=600_000, cpu_period=100_000, memory=GIB)
"""What a kubelet asks for a container without resources of its own: its pod's are its limits."""
PATH: Final = "/api/v1/namespaces/default/pods/app"
FOR_EVER: Final = 3600.0

Tale = Callable[[WiredNode, ApiServer], Awaitable[None]]


def put(api: ApiServer, manifest: dict[str, Any]) -> None:
    """The server has a pod, with the uid that the kubelet knows it by."""
    about = {"namespace": "default", **manifest["metadata"]}
    api.cluster.create(PODS, {**manifest, "metadata": about}, uid=about["uid"])


def play(folder: Path, tale: Tale, config: NodeConfig = WHOLE) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60 * PATIENCE), running(ApiServer()) as api:
            client = KubeClient(Access(api.url, None))
            harness = {"machine": "1s8c2t", "config": config, "server": client}
            try:
                async with wired_node(folder, **harness) as node:
                    await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
                    await tale(node, api)
                    await settled(node)
                    node.check()
                    assert node.recorded() == node.kernel()
            finally:
                await client.close()

    asyncio.run(whole())


async def settled(node: WiredNode) -> None:
    """Wait until the runtime has on record where everybody is."""
    await until(lambda: node.ledger.behind == 0)


async def unasked(node: WiredNode, name: str, cpus: str) -> None:
    """Wait for a frame in which the plugin moves a container of its own accord."""
    ids = {one.seen.id for one in node.node.containers.values() if one.pod.name == name}
    await until(lambda: ids & {number for number, to in node.wire.unasked if to == cpus})


def asked(api: ApiServer) -> int:
    return api.requests.count(("GET", PATH))


def test_a_pod_from_its_first_container_to_its_end(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        pod = await node.pod("app")
        init = await node.run(pod, "i0", guaranteed(2))
        # The adjustment has its own CPUs, and an update takes others off the whole bubble.
        assert init.seen.resources == replace(guaranteed(2), cpus="2-3", cpu_quota=-1)
        await unasked(node, "web", "1,8-15")
        await node.node.stop(init)
        await node.node.remove(init)
        assert node.kernel() == {"web/main": "1,8-15"}
        for name, asks, cpus in (
            ("s0", guaranteed(1), "2"),
            ("c0", guaranteed(2), "4-5"),
            ("c1", guaranteed(1), "3"),
        ):
            one = await node.run(pod, name, asks)
            assert one.seen.resources == replace(asks, cpus=cpus, cpu_quota=-1)
        shared = await node.run(pod, "p0", SHARES)
        assert shared.seen.resources == replace(SHARES, cpus="6-7")
        await settled(node)
        assert node.kernel() == {
            "web/main": "1,8-15",
            "app/s0": "2",
            "app/c0": "4-5",
            "app/c1": "3",
            "app/p0": "6-7",
        }
        node.check()
        assert asked(api) == 1
        assert (node.specs.asked, node.specs.unread, node.specs.problem) == (1, 0, "")
        node.wire.unasked.clear()
        await node.node.stop_pod(pod)
        await unasked(node, "web", "1-15")
        assert node.books.view.state.ledger.bubbles == {}

    play(tmp_path, tale)


def test_a_sidecar_that_comes_first_takes_the_bubble_for_all(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, whole_pod("app", "4", "2", sidecars=("",)))
        pod = await node.pod("app")
        beside = await node.run(pod, "s0", SHARES)
        own = await node.run(pod, "c0", guaranteed(2))
        shared = await node.run(pod, "p0", SHARES)
        # It goes on beside the others, and shares what the owner leaves.
        cpus = [one.seen.resources.cpus for one in (beside, own, shared)]
        assert cpus == ["4-5", "2-3", "4-5"]
        await unasked(node, "web", "1,6-15")
        assert str(node.books.view.state.ledger.bubbles["uid-app"]) == "2-5"

    play(tmp_path, tale)


def test_another_attempt_is_given_the_same(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        pod = await node.pod("app")
        one = await node.run(pod, "c0", guaranteed(2))
        await node.node.stop(one)
        again = await node.run(pod, "c0", guaranteed(2))
        assert (one.seen.resources.cpus, again.seen.resources.cpus) == ("4-5", "4-5")
        # Nor does another agent decide anew, or ask again.
        await node.kill()
        await node.start()
        shared = await node.run(pod, "p0", SHARES)
        assert shared.seen.resources.cpus == "6-7"
        assert asked(api) == 1

    play(tmp_path, tale)


def test_a_runtime_that_was_away_finds_the_bubble_as_it_was(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        pod = await node.pod("app")
        await node.run(pod, "c0", guaranteed(2))
        node.peer.hang_up()
        await node.taken()
        shared = await node.run(pod, "p0", SHARES)
        assert shared.seen.resources.cpus == "6-7"
        assert str(node.books.view.state.ledger.bubbles["uid-app"]) == "2-7"
        assert asked(api) == 1

    play(tmp_path, tale)


def test_a_pod_that_does_not_fit_is_an_error_of_the_creation(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, whole_pod("app", "2", "2", shared=1))
        pod = await node.pod("app")
        with pytest.raises(RefusedError, match=r"^EmptyPodSharedPoolError: "):
            await node.node.create(pod, "c0", guaranteed(2))
        assert node.books.view.state.ledger.bubbles == {}
        assert node.kernel() == {"web/main": "1-15"}

    play(tmp_path, tale)


def test_a_resize_in_a_bubble_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        pod = await node.pod("app")
        one = await node.run(pod, "c0", guaranteed(2))
        with pytest.raises(RefusedError, match="inconsistentCPUAllocationError"):
            await node.node.resize(one, guaranteed(3))
        assert one.seen.resources == replace(guaranteed(2), cpus="4-5", cpu_quota=-1)

    play(tmp_path, tale)


def test_with_the_gate_of_quotas_off_owners_keep_theirs(tmp_path: Path) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        pod = await node.pod("app")
        own = await node.run(pod, "c0", guaranteed(2))
        shared = await node.run(pod, "p0", SHARES)
        await settled(node)
        assert own.seen.resources == replace(guaranteed(2), cpus="4-5")
        assert shared.seen.resources == replace(SHARES, cpus="6-7")
        # Nor do they lose it when what the runtime has on record is written anew.
        await node.kill()
        await node.start()
        await settled(node)
        assert own.seen.resources.cpu_quota == 200_000
        assert (str(own.kernel), str(shared.kernel)) == ("4-5", "6-7")

    gates = {**WHOLE.feature_gates, "DisableCPUQuotaWithExclusiveCPUs": False}
    play(tmp_path, tale, replace(WHOLE, feature_gates=gates))


# -------------------------------------------------------------------------- who cannot be read


async def shares(node: WiredNode, pod: PodSandbox, why: str) -> None:
    """All containers of a pod share, now and later, and it is said once."""
    own = await node.run(pod, "c0", guaranteed(2))
    await node.run(pod, "c1", guaranteed(1))
    assert own.seen.resources == replace(guaranteed(2), cpus="1-15")
    assert node.kernel() == {"web/main": "1-15", "app/c0": "1-15", "app/c1": "1-15"}
    assert node.books.view.state.ledger.assignments == {}
    assert (node.specs.asked, node.specs.unread) == (1, 1)
    assert why in node.specs.problem
    (said,) = [one for one in node.problems if "as its specification could not be read" in one]
    assert said.startswith("default/app: it shares its CPUs")
    assert said.endswith(node.specs.problem)


Troubles: Final = {
    "late": (FOR_EVER, "no answer within 0.6 s"),
    "forbidden": (403, "403"),
    "unauthorized": (401, "401"),
    "broken": (500, "500"),
    "away": (503, "503"),
    "busy": (429, "429"),
}


@pytest.mark.parametrize(("trouble", "why"), Troubles.values(), ids=Troubles)
def test_a_server_that_does_not_say_it(tmp_path: Path, trouble: float, why: str) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        api.stands_in = lambda _, path: trouble if path == PATH else None
        pod = await node.pod("app")
        await shares(node, pod, why)
        # What was decided stays when the server is back; a new pod is served as ever.
        api.stands_in = lambda _method, _path: None
        await node.run(pod, "p0", SHARES)
        assert node.kernel()["app/p0"] == "1-15"
        put(api, whole_pod("next", "3", "2"))
        following = await node.run(await node.pod("next"), "c0", guaranteed(2))
        assert following.seen.resources.cpus == "2-3"
        assert node.specs.problem == ""

    play(tmp_path, tale)


@pytest.mark.parametrize(
    ("has", "why"),
    [
        (None, "404"),
        ({**APP, "metadata": {"name": "app", "uid": "uid-new"}}, "another pod of that name"),
        ({**APP, "spec": {"containers": "none"}}, "spec.containers"),
    ],
    ids=["nothing", "another", "damaged"],
)
def test_a_server_that_has_no_such_pod(tmp_path: Path, has: Any, why: str) -> None:
    async def tale(node: WiredNode, api: ApiServer) -> None:
        if has is not None:
            put(api, has)
        await shares(node, await node.pod("app"), why)

    play(tmp_path, tale)


def test_a_server_that_nobody_reaches(tmp_path: Path) -> None:
    async def tale(node: WiredNode, _: ApiServer) -> None:
        await node.kill()
        # A port on which nobody listens, for it was just given back.
        listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        node.server = KubeClient(Access(f"http://127.0.0.1:{port}", None))
        await node.start()
        await shares(node, await node.pod("app"), str(port))
        await node.server.close()

    play(tmp_path, tale)


def test_what_a_server_says_later_changes_nothing(tmp_path: Path) -> None:
    """Who was read once is not read again: the bubble is what its first container took."""

    async def tale(node: WiredNode, api: ApiServer) -> None:
        put(api, APP)
        pod = await node.pod("app")
        await node.run(pod, "c0", guaranteed(2))
        api.cluster.delete(PODS, "app", "default")
        put(api, whole_pod("app", "2", "1"))
        shared = await node.run(pod, "p0", SHARES)
        assert shared.seen.resources.cpus == "6-7"
        assert str(node.books.view.state.ledger.bubbles["uid-app"]) == "2-7"
        assert asked(api) == 1

    play(tmp_path, tale)
