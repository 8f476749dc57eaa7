"""The quota controller of Kubernetes itself, as far as it shares a status with others."""

from __future__ import annotations

import asyncio

from pinfold.ports.kubernetes import (
    PODS,
    RESOURCE_QUOTAS,
    ConflictError,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
)


async def built_in_quota(client: Kubernetes) -> None:
    """Count pods in the status of every quota, for ever.

    What it does not know (any name but ``pods``) stays as it is where the spec still has it; all of
    the spec's limits become those in force.
    """
    news = asyncio.Event()

    async def follow(resource: object) -> None:
        async for _ in client.changes(resource):  # type: ignore[call-overload] # two of them
            news.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow(PODS))
        tasks.create_task(follow(RESOURCE_QUOTAS))
        while True:
            await news.wait()
            news.clear()
            try:
                for quota in await client.list(RESOURCE_QUOTAS):
                    await _settle(client, quota)
            except (ConflictError, NotFoundError):
                news.set()
            except KubernetesError:
                await asyncio.sleep(0.1)
                news.set()


async def _settle(client: Kubernetes, quota: Object) -> None:
    hard = quota["spec"].get("hard", {})
    status = quota.get("status") or {}
    used = dict(status.get("used") or {})
    if "pods" in hard:
        used["pods"] = str(len(await client.list(PODS, quota["metadata"]["namespace"])))
    used = {name: value for name, value in used.items() if name in hard}
    wanted = {"hard": hard, "used": used}
    if wanted != status:
        await client.update(RESOURCE_QUOTAS, quota | {"status": wanted}, "status")
