"""The table of annotations: what is read, and what is noted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.pod.annotation import DOMAIN, Annotation
from pinfold.core.pod.annotations import (
    ANNOTATIONS,
    CPU_BURST,
    EXCLUSIVE_CPUS,
    ISOLATED_CPUS,
    KEEP_CPUS,
    MEMORY_LIMIT,
    NEAR,
    RESIZE_BELOW_BASELINE,
    SCALE_DOWN_GRACE_PERIOD,
    annotation_problems,
)
from pinfold.core.pod.manifest.workload_fields import CRI, PROCESS, check_fields
from pinfold.core.values.cpuset import CPUSet

NAMES = {"main", "side"}


def problems(said: dict[str, Any], runtime: str | None = "process") -> dict[str, str]:
    return dict(annotation_problems(said, NAMES, runtime))


def test_a_containers_counts_more_than_its_pods() -> None:
    said = {
        "resize-below-baseline.pinfold.dev/pod": "true",
        "resize-below-baseline.pinfold.dev/container.side": "false",
        "keep-cpus.pinfold.dev/container.main": "3,5",
        "scale-down-grace-period.pinfold.dev/pod": "5",
        "pinfold.dev/memory-limit": "none",
    }
    assert RESIZE_BELOW_BASELINE.of(said, "main")
    assert not RESIZE_BELOW_BASELINE.of(said, "side")
    assert KEEP_CPUS.of(said, "main") == CPUSet([3, 5])
    assert KEEP_CPUS.of(said, "side") == CPUSet()
    assert SCALE_DOWN_GRACE_PERIOD.of(said, "main") == 5
    assert SCALE_DOWN_GRACE_PERIOD.of({}, "main") is None
    assert MEMORY_LIMIT.of(said, "main") == "none"
    assert RESIZE_BELOW_BASELINE.said(said, NAMES) == {"pod": True, "container.side": False}


def test_what_cannot_be_read_says_nothing() -> None:
    """Not what the pod says of all: that was not meant for this container."""
    said = {
        "exclusive-cpus.pinfold.dev/container.main": "no",
        "exclusive-cpus.pinfold.dev/pod": "false",
    }
    assert EXCLUSIVE_CPUS.of(said, "main") is EXCLUSIVE_CPUS.default
    assert not EXCLUSIVE_CPUS.of(said, "side")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("near.pinfold.dev/pod", "a b", "'a b' is no device name"),
        ("near.pinfold.dev/pod", 5, "must be a string (quote it)"),
        ("exclusive-cpus.pinfold.dev/pod", False, "must be true or false, not 'False' (a string"),
        ("isolated-cpus.pinfold.dev/pod", "always", "must be never, prefer or require, not"),
        ("keep-cpus.pinfold.dev/container.main", "3-", "must be a list of CPUs such as 3,5"),
        ("scale-down-grace-period.pinfold.dev/pod", "11", "seconds from 0 to 10, not '11'"),
        ("scale-down-grace-period.pinfold.dev/pod", "5s", "seconds from 0 to 10, not '5s'"),
        ("scale-down-grace-period.pinfold.dev/pod", "²", "seconds from 0 to 10"),
        ("pinfold.dev/memory-limit", "1Gi", "must be none, not '1Gi'"),
        ("near.pinfold.dev/container.x", "eth0", "no container 'x'; it has main, side"),
        ("near.pinfold.dev/pods", "eth0", "must be near.pinfold.dev/pod or near.pinfold.dev/cont"),
        ("near.pinfold.dev", "eth0", "must be near.pinfold.dev/pod or"),
        ("nears.pinfold.dev/pod", "eth0", "no such annotation; did you mean near.pinfold.dev/pod?"),
        ("Near.pinfold.dev/pod", "eth0", "did you mean near.pinfold.dev/pod?"),
        ("pinfold.dev/memory-limits", "none", "did you mean pinfold.dev/memory-limit?"),
        ("memory-limit.pinfold.dev/pod", "none", "did you mean pinfold.dev/memory-limit?"),
        ("pinfold.dev/x", "", "no such annotation; it has near, near-policy, "),
        ("smt-isolation.pinfold.dev/pod", "", "did you mean smt-isolate.pinfold.dev/pod?"),
        ("irqs.pinfold.dev/pod", "off", "must be keep-off or allow, not 'off'"),
        ("cache-class.pinfold.dev/pod", "Gold!", "must be the name of a class, or none, not"),
        ("exclusive-cpus.pinfold.dev/pod", "false", "is carried out with runtime nri only"),
    ],
)
def test_what_is_noted(key: str, value: object, problem: str) -> None:
    (found,) = problems({key: value}).items()
    assert found[0] == key
    assert problem in found[1]


def test_what_is_in_force_is_not_noted() -> None:
    said = {
        "near.pinfold.dev/pod": "eth0",
        "near-policy.pinfold.dev/container.main": "required",
        "pinfold.dev/memory-limit": "none",
        "example.com/pinfold.dev": "x",
        "notpinfold.dev/pod": "x",
    }
    assert problems(said) == {}
    assert problems({"exclusive-cpus.pinfold.dev/pod": "false"}, "nri") == {}
    assert problems({"pinfold.dev/memory-limit": "none"}, "nri") != {}
    # A plan says nothing of what some runtime carries out: it answers for a kubelet.
    assert problems({"exclusive-cpus.pinfold.dev/pod": "false"}, None) == {}
    # Isolated CPUs are in plans of a node with a section, which reject what cannot be read.
    isolated = "isolated-cpus.pinfold.dev/pod"
    for value in ("require", "always"):
        assert not list(annotation_problems({isolated: value}, {"main"}, None, own=True))
        assert problems({isolated: value}, None) != {}
    assert problems({isolated: "require"}, None)[isolated].endswith("has a section pinfold")
    # Containers that are not known yet are no mistake.
    assert not list(annotation_problems({"near.pinfold.dev/container.x": "a"}, None, "nri"))


@pytest.mark.parametrize("row", ANNOTATIONS, ids=lambda row: row.name)
def test_each_row_is_carried_out_or_says_so(row: Annotation[Any]) -> None:
    values = {
        NEAR.name: "eth0",
        "near-policy": "required",
        KEEP_CPUS.name: "1",
        SCALE_DOWN_GRACE_PERIOD.name: "1",
        ISOLATED_CPUS.name: "prefer",
        MEMORY_LIMIT.name: "none",
        "irqs": "keep-off",
        CPU_BURST.name: "50%",
    }
    said = {row.key(): values.get(row.name, "true")}
    found = {runtime: problems(said, runtime) for runtime in ("process", "cri", "nri")}
    for runtime, told in found.items():
        if runtime in row.runtimes:
            assert told == {}
        else:
            assert "carried out" in told[row.key()]


@pytest.mark.parametrize("runtime", [PROCESS, CRI])
def test_a_request_is_answered_with_the_note(runtime: str) -> None:
    pod = {
        "metadata": {"name": "web", "annotations": {"rebalanced.pinfold.dev/container.main": "no"}},
        "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]},
    }
    (note,) = check_fields(pod, runtime)
    assert note == (
        "metadata.annotations.rebalanced.pinfold.dev/container.main: Pinfold has no such "
        "annotation; did you mean rebalance.pinfold.dev/container.main?"
    )


@given(
    st.dictionaries(
        st.one_of(
            st.text(max_size=30),
            st.sampled_from([row.key() for row in ANNOTATIONS]),
            st.text(max_size=9).map(lambda text: f"{text}.{DOMAIN}/{text}"),
        ),
        st.one_of(st.text(max_size=12), st.integers(), st.none(), st.booleans()),
        max_size=4,
    )
)
def test_whatever_is_said_is_read_or_noted(said: dict[str, Any]) -> None:
    told = problems(said, None)
    for row in ANNOTATIONS:
        value = row.of(said, "main")
        if row.key() in said and row.key() not in told and row.of(said, "main") != row.default:
            assert value == row.parse(said[row.key()])
    for key in told:
        assert DOMAIN in key
