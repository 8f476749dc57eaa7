"""The priority of a pod is that of its class."""

from __future__ import annotations

from typing import Any

import pytest

from pinfold.core.pod.api import PodError
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.priorities import Priorities, PriorityClass, priority_class_from_api

KNOWN = Priorities.of([PriorityClass("high", 1000), PriorityClass("usual", 7, is_default=True)])


@pytest.mark.parametrize(
    ("named", "own", "priority"),
    [
        ("high", None, 1000),
        ("high", 3, 3),
        (None, None, 7),
        ("system-node-critical", None, 2_000_001_000),
        ("nobody", None, None),
    ],
)
def test_the_class_says_the_priority_unless_the_pod_does(
    named: str | None, own: int | None, priority: int | None
) -> None:
    pod = Pod("u", "p", priority=own, priority_class_name=named)
    given = KNOWN.given(pod)
    assert given.priority == priority
    assert given.priority_class_name == (named or "usual")
    assert KNOWN.knows(pod) == (priority is not None)


def test_without_a_default_nobody_is_given_one() -> None:
    assert Priorities.of().given(Pod("u", "p")).priority is None


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {}},
        {"value": "high"},
        {"value": 2_000_000_000},
        {"globalDefault": "yes"},
    ],
)
def test_what_is_no_class_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PodError):
        priority_class_from_api({"metadata": {"name": "a"}, "value": 1, **fields})
