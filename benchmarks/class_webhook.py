"""How quick the webhook of classes is: ``python -m benchmarks.class_webhook [--nodes 5000]``.

As in :mod:`benchmarks.webhooks`; all is real but for the cluster, which is in memory: so many nodes
with devices of one of ten classes each, listed before the first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.scenes.class_cluster import compute_resource, resource_class
from tests.scenes.kubernetes_worlds import in_background

from benchmarks.quota_webhook import typical_pod
from benchmarks.webhooks import measure, parser
from pinfold.cluster.classes.admission import ClassAdmission
from pinfold.cluster.classes.known import Known
from pinfold.core.classes.names import class_resource
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, RESOURCE_CLASSES
from pinfold.web.webhook.app import Decide

CLASSES = 10


def classed_pod(number: int) -> dict[str, Any]:
    """The pod of quotas' benchmark, one of its containers with a class."""
    found = typical_pod(number)
    main = found["spec"]["containers"][0]
    asked = {**main["resources"]["limits"], class_resource(f"gold-{number % CLASSES}"): "1"}
    main["resources"] = {"requests": asked, "limits": asked}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    options = parser("class_webhook", __doc__)
    options.add_argument("--nodes", type=int, default=5000, help="nodes of the cluster (5000)")
    given = options.parse_args(arguments)
    measure(partial(_decides, given.nodes), classed_pod, given, nodes=given.nodes)
    return 0


def _decides(nodes: int) -> Decide:
    cluster = FakeCluster()
    for number in range(CLASSES):
        cluster.create(RESOURCE_CLASSES, resource_class(f"gold-{number}", f"kind-{number}"))
    for number in range(nodes):
        one = compute_resource(f"r{number}", f"n{number}", f"kind-{number % CLASSES}", 8)
        cluster.create(COMPUTE_RESOURCES, one)
    return asyncio.run(_listed(Known(FakeKubernetes(cluster))))


async def _listed(known: Known) -> Decide:
    async with in_background(known.follow()):
        await known.synced.wait()
    return ClassAdmission(known).decide


if __name__ == "__main__":
    raise SystemExit(main())
