"""What is to be told to who knows how it was before."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from pinfold.documents.live.event import Changed, Whole
from pinfold.documents.live.following import OF_STATUS, moved_with_the_pool


def difference(before: Whole, now: Whole) -> Changed | None:
    """What has changed but for load and counters, as little as will do; None: nothing.

    :func:`~pinfold.documents.live.following.changed` of it and of ``before`` gives ``now``.
    """
    old, new = before.status, now.status
    told: dict[str, Any] = {}
    for name in OF_STATUS:
        value = getattr(new, name)
        if value is not (known := getattr(old, name)) and value != known:
            told[name] = value
    if told.get("quotas", ()) is UNSET:
        told["quotas"] = ()
    guessed = {
        pod.uid: pod for pod in moved_with_the_pool(old.pods, old.pool, told.get("pool", UNSET))
    }
    pods = [pod for pod in new.pods if guessed.pop(pod.uid, None) != pod]
    if before.node is not now.node and before.node != now.node:
        told["node"] = now.node
    found = Changed(pods=pods, gone=list(guessed), **told)
    return None if not (told or pods or guessed) else found
