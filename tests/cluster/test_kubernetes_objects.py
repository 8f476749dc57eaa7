"""Lists and watches of a real client, at a server that fails."""

from __future__ import annotations

import asyncio

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.ports.kubernetes import PODS
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.scenes.kubernetes_worlds import following, has_listed
from tests.scenes.waiting import until


def pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": []}}


def test_a_list_whose_rest_is_forgotten_is_begun_again_at_once() -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            for name in "abc":
                api.cluster.create(PODS, pod(name))

            def compacted(_method: str, _path: str) -> None:
                if len(api.requests) == 2:
                    api.cluster.compact()

            api.stands_in = compacted
            client = KubeObjects(Access(api.url, None), chunk=1)
            async with following(client, PODS) as follower:
                await follower.until(lambda: has_listed(follower))
                assert follower.names() == ["listed a", "listed a,b,c"]
                assert follower.problems == []
            await client.close()

    asyncio.run(scenario())


def test_what_fails_is_told_once_and_tried_again() -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            api.stands_in = lambda _method, _path: 500 if len(api.requests) < 3 else None
            client = KubeObjects(Access(api.url, None))
            async with following(client, PODS) as follower:
                await follower.until(lambda: has_listed(follower))
                assert follower.problems == [
                    f"{api.url}: GET /api/v1/pods: status 500: 'as the test wants it'"
                ]
                # A watch that the server refuses is tried again from where it was.
                before = len(api.requests)
                api.stands_in = lambda _m, _p: 503 if len(api.requests) < before + 3 else None
                api.cluster.disconnect()
                api.cluster.create(PODS, pod("b"))
                await follower.until(lambda: "ADDED b" in follower.names())
                assert follower.names() == ["listed ", "ADDED b"]
            await client.close()

    asyncio.run(scenario())


def test_a_token_that_is_not_known() -> None:
    async def scenario() -> None:
        async with running(ApiServer(tokens={"good": "system:me"})) as api:
            for token, told in (("good", "listed "), ("bad", "the token or certificate is not")):
                client = KubeObjects(Access(api.url, None, token=token))
                async with following(client, PODS) as follower:
                    if token == "good":  # noqa: S105 - a token of the test
                        await follower.until(lambda: has_listed(follower))
                        assert follower.names() == [told]
                    else:
                        await until(lambda: follower.problems)
                        assert told in follower.problems[0]
                await client.close()

    asyncio.run(scenario())
