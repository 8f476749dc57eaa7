"""What a replica does about quotas all the time: it knows them, and may keep their status."""

from __future__ import annotations

import asyncio

from pinfold.cluster.lease import Election
from pinfold.cluster.quota.known import Quotas
from pinfold.cluster.quota.status import QuotaStatus


async def keep_quotas(quotas: Quotas, status: QuotaStatus, election: Election) -> None:
    """Follow the quotas, and keep their status while this replica leads; until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(quotas.follow())
        tasks.create_task(election.run(status.run))
