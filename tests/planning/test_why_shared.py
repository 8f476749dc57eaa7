"""A plan says why a Guaranteed pod has no exclusive CPUs."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Planner

STATIC = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))


def pod(*cpus: str, memory: str = "1Gi") -> Pod:
    containers = [
        {"name": f"c{at}", "resources": {"limits": {"cpu": cpu, "memory": memory}}}
        for at, cpu in enumerate(cpus)
    ]
    content = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}
    return apply_defaults(pod_from_api(content))


def shares(config: NodeConfig, one: Pod) -> object:
    [planned] = plan_document(Planner(parse_short_form("1s4c2t"), config).plan([one])).pods
    return planned.shares


def test_a_fraction_is_named() -> None:
    assert shares(STATIC, pod("1500m", "500m")) == (
        "cpu 1500m, 500m is no whole number of CPUs; only whole ones are exclusive"
    )


@pytest.mark.parametrize("one", [pod("2", "500m"), pod("2")])
def test_who_has_some_does_not_share_all(one: Pod) -> None:
    assert shares(STATIC, one) is UNSET


def test_where_nobody_has_any_nothing_is_said_of_one_pod() -> None:
    assert shares(NodeConfig(), pod("1500m")) is UNSET
