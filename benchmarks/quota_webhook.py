"""How quick the webhook is: ``python -m benchmarks.quota_webhook [--rate 200] [--seconds 20]``.

As in :mod:`benchmarks.webhooks`; all is real but for the API server's write of the charge, which is
made in memory, and takes ``--write`` milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.scenes.webhook_world import pod

from benchmarks.webhooks import measure, parser
from pinfold.cluster.quota.admission import Admission
from pinfold.core.quota.charge import Charged, Refused, Request, charge, charge_claim
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.values.quantity import Quantity
from pinfold.web.webhook.app import Decide


class InMemory:
    """Charges a quota that is never full; each write takes as long as it is told to."""

    def __init__(self, write: float) -> None:
        hard = {EXCLUSIVE_CPUS: Quantity(10**9)}
        used = {EXCLUSIVE_CPUS: Quantity(0)}
        self._quotas: tuple[ResourceQuota, ...] = (
            ResourceQuota("team", "cpus", hard, used=used, status_hard=hard),
        )
        self._write = write
        self._rules = ClaimRules()

    async def charge(self, namespace: str, request: Request, *, dry_run: bool) -> Charged | Refused:
        """Charge a pod."""
        del namespace, dry_run
        return await self._written(charge(self._quotas, request, time.time()))

    async def charge_claim(
        self, namespace: str, uid: str, name: str, claimed: ClaimedCPUs, *, dry_run: bool
    ) -> Charged | Refused:
        """Charge a claim."""
        del namespace, uid, dry_run
        return await self._written(charge_claim(self._quotas, name, claimed, self._rules.capacity))

    def problems(self) -> Sequence[str]:
        """None."""
        return ()

    async def _written(self, found: Charged | Refused) -> Charged | Refused:
        if isinstance(found, Charged):
            self._quotas = found.quotas
        if self._write:
            await asyncio.sleep(self._write)
        return found


def typical_pod(number: int) -> dict[str, Any]:
    """A pod of a Deployment, with what API server and controllers add to it: 5 KiB."""
    fields: dict[str, Any] = {f"f:{name}": {} for name in ("image", "name", "resources", "env")}
    owned = {f'k:{{"name":"c{i}"}}': fields for i in range(6)}
    managed = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:containers": owned}},
    }
    found = pod(f"web-{number}", cpus="2", uid=f"u-{number}", managedFields=[managed])
    main = found["spec"]["containers"][0]
    env = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20)]
    found["spec"]["containers"] = [{**main, "name": f"c{i}", "env": env} for i in range(2)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    options = parser("quota_webhook", __doc__)
    options.add_argument("--write", type=float, default=0.0, help="ms of a write of the charge (0)")
    given = options.parse_args(arguments)
    measure(partial(_decides, given.write / 1000), typical_pod, given, write_ms=given.write)
    return 0


def _decides(write: float) -> Decide:
    return Admission(InMemory(write), ClaimRules()).decide


if __name__ == "__main__":
    raise SystemExit(main())
