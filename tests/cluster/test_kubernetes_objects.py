"""Lists and watches of a real client, at a server that fails."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, PODS, KubernetesError
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


def test_silence_is_a_failure_only_where_bookmarks_have_come() -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            client = KubeObjects(Access(api.url, None), silence=0.1)
            async with following(client, PODS) as follower:
                await follower.until(lambda: has_listed(follower))
                await until(lambda: len(api.requests) > 1)
                # Many times as long as it may be silent once a bookmark has come.
                await asyncio.sleep(1)
                assert (follower.problems, len(api.requests)) == ([], 2)
                api.cluster.bookmark()
                await until(lambda: follower.problems[-1:] == [""])
                assert follower.problems[0] == (
                    f"{api.url}: watch /api/v1/pods: nothing was heard for 0.1 s"
                )
                api.cluster.create(PODS, pod("b"))
                await follower.until(lambda: "ADDED b" in follower.names())
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_be_another_path_is_not_asked_for(name: str) -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            client = KubeObjects(Access(api.url, None))
            metadata = {"name": name, "namespace": "default"}
            for asked in (
                client.get(PODS, name, "default"),
                client.get(PODS, "a", name),
                client.get(COMPUTE_RESOURCES, name),
                client.delete(PODS, name, "default"),
                client.patch(PODS, name, {}, "default"),
                client.update(PODS, {"metadata": metadata}),
                client.create(PODS, {"metadata": metadata}, "binding"),
            ):
                with pytest.raises(KubernetesError, match="name") as refused:
                    await asked
                assert refused.value.status == 400, "it is known that nothing was done"
            assert api.requests == []
            await client.close()

    asyncio.run(scenario())
