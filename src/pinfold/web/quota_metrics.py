"""The metrics of quotas that an agent keeps beside its pods, computed at the scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pinfold.node.pods.quotas import quotas_of
from pinfold.node.view import Reader

MOST_QUOTAS: Final = 200
"""Quotas that have metrics, the first by namespace and name, so that nobody floods a monitor."""

_QUOTA: Final = ("namespace", "resourcequota")


def quota_metrics(books: Reader) -> Iterator[Metric]:
    """What quotas limit, what is in use of them, and how often each has refused."""
    hard = GaugeMetricFamily(
        "pinfold_quota_hard", "What a quota limits.", labels=[*_QUOTA, "resource"]
    )
    used = GaugeMetricFamily(
        "pinfold_quota_used", "What is in use of it.", labels=[*_QUOTA, "resource"]
    )
    refused = CounterMetricFamily(
        "pinfold_quota_refusals", "Pods and resizes that it has refused.", labels=_QUOTA
    )
    for quota in quotas_of(books.view, books.observers.clock).quotas[:MOST_QUOTAS]:
        key = quota.namespace, quota.name
        for family, amounts in ((hard, quota.hard), (used, quota.used)):
            for name, amount in sorted(amounts.items()):
                family.add_metric([*key, name], float(amount.milli_value()) / 1000)
        refused.add_metric(key, books.counters.quota_refusals["/".join(key)])
    yield from (hard, used, refused)
