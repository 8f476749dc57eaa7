"""Metrics: the kubelet's names, true values, and a page that tells all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from pinfold.agent.loops.following import divides_caches, keeps_domains, keeps_interrupts_off
from pinfold.core.cache.options import CacheClass, CacheOptions
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import InterruptOptions, LendingOptions, OwnPolicies
from pinfold.core.kubelet.versions import V1_35
from pinfold.core.memory.protection import MemoryQoS, Reservation
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.status import AgentConfig
from pinfold.node.settings import NodeSettings
from pinfold.ports.figures import Figure
from pinfold.web.metrics import Metrics
from tests.roots import ROOT
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, served

PAGE = ROOT / "docs" / "reference" / "metrics.md"

ALIGNED = NodeConfig(
    cpu_manager_policy="static",
    reserved_system_cpus=CPUSet([0]),
    topology_manager_policy="single-numa-node",
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s", machine="2s4c2t", config=ALIGNED) as server:
        yield server


def scrape(api: Served) -> dict[str, float]:
    """Every sample by name and labels, as Prometheus reads it."""
    answer = api.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        sample.name
        + "".join(f"{{{k}={v}}}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_fresh_agent_has_every_metric_at_its_start(api: Served) -> None:
    found = scrape(api)
    assert found["pinfold_cpu_manager_pinning_requests_total"] == 0
    assert found["pinfold_cpu_manager_shared_pool_size_millicores"] == 15_000
    assert found["pinfold_cpu_manager_allocation_per_numa{numa_node=0}"] == 0
    assert found["pinfold_cpu_manager_allocation_per_numa{numa_node=1}"] == 0
    assert found["pinfold_running_containers{container_state=running}"] == 0
    assert found["process_resident_memory_bytes"] > 1_000_000


def test_the_metrics_follow_the_pods(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("db", "4"))
    api.ask("POST", "/v1/pods", manifest("web", "", ""))
    api.ask("POST", "/v1/pods", manifest("wide", "10"))
    wait_until(lambda: phase(api, "web") == phase(api, "db") == "Running")
    found = scrape(api)
    # The merge of hints refused the wide one: the CPU manager was never asked for its CPUs.
    assert found["pinfold_cpu_manager_pinning_requests_total"] == 1
    assert found["pinfold_cpu_manager_pinning_errors_total"] == 0
    assert found["pinfold_cpu_manager_exclusive_cpu_allocation_count"] == 4
    assert found["pinfold_cpu_manager_shared_pool_size_millicores"] == 11_000
    per_node = [found[f"pinfold_cpu_manager_allocation_per_numa{{numa_node={n}}}"] for n in (0, 1)]
    assert sorted(per_node) == [0, 4], "aligned to one node"
    assert found["pinfold_topology_manager_admission_requests_total"] == 3
    assert found["pinfold_topology_manager_admission_errors_total"] == 1
    aligned = "pinfold_container_aligned_compute_resources_failure_count"
    assert found[f"{aligned}{{boundary=numa_node}}{{scope=container}}"] == 1
    assert found[f"{aligned}{{boundary=numa_node}}{{scope=pod}}"] == 0
    aligned = "pinfold_container_aligned_compute_resources_count"
    assert found[f"{aligned}{{boundary=numa_node}}{{scope=container}}"] == 3
    assert found[f"{aligned}{{boundary=uncore_cache}}{{scope=container}}"] == 1
    assert found["pinfold_admission_requests_total"] == 3
    assert found["pinfold_admission_rejections_total{reason=TopologyAffinityError}"] == 1
    assert found["pinfold_started_pods_total"] == 2
    assert found["pinfold_started_containers_total"] == 3
    assert found["pinfold_running_pods"] == 2
    assert found["pinfold_running_containers{container_state=running}"] == 3
    assert found["pinfold_container_start_duration_seconds_count"] == 3
    assert found["pinfold_container_start_duration_seconds_bucket{le=+Inf}"] == 3
    for name in ("db", "web"):
        api.ask("DELETE", f"/v1/pods/default/{name}")
    found = scrape(api)
    assert found["pinfold_running_pods"] == 0
    assert found["pinfold_cpu_manager_exclusive_cpu_allocation_count"] == 0
    assert found["pinfold_started_containers_total"] == 3, "a total does not shrink"


def test_the_policy_and_its_options_are_told(tmp_path: Path) -> None:
    config = replace(
        ALIGNED,
        cpu_manager_policy="dynamic",
        cpu_manager_policy_options={"full-pcpus-only": "True"},
        own=OwnPolicies(),
    )
    with served(tmp_path / "s", config=config) as server:
        samples = [name for name in scrape(server) if "policy_info" in name]
    assert samples == [
        "pinfold_cpu_manager_policy_info{options=full-pcpus-only=true}{policy=dynamic}"
    ]


def test_the_buckets_of_the_histogram_grow(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("web", "", ""))
    wait_until(lambda: phase(api, "web") == "Running")
    name = "pinfold_container_start_duration_seconds_bucket"
    counts = [value for sample, value in scrape(api).items() if sample.startswith(name)]
    assert len(counts) > 5
    assert counts == sorted(counts)


def test_reconciliation_is_counted(api: Served) -> None:
    api.do(lambda: setattr(api.node.cgroups, "shared", CPUSet([3])))
    api.ask("POST", "/v1/reconcile")
    api.ask("POST", "/v1/reconcile")
    found = scrape(api)
    assert found["pinfold_reconcile_duration_seconds_count"] == 2
    assert found["pinfold_reconcile_repairs_total"] == 1
    assert found["pinfold_cgroup_failures_total"] == 0


def test_two_agents_in_one_process_do_not_mix(api: Served, tmp_path: Path) -> None:
    with served(tmp_path / "other") as other:
        other.ask("POST", "/v1/pods", manifest("a", "1"))
        assert scrape(other)["pinfold_admission_requests_total"] == 1
        assert scrape(api)["pinfold_admission_requests_total"] == 0


def test_options_are_told_as_a_file_has_them(api: Served) -> None:
    own = OwnPolicies(
        lending=LendingOptions(use=True),
        cache=CacheOptions(classes={"fast": CacheClass(l3="25%"), "thin": CacheClass(l2="4")}),
        irqs=InterruptOptions(housekeeping="0-1"),
    )
    settings = AgentConfig(
        cpu_manager_policy="dynamic",
        cpu_manager_policy_options={},
        topology_manager_policy="none",
        topology_manager_scope="container",
        topology_manager_policy_options={},
        reserved_system_cpus="0",
        pinfold=own.by_group,
    )
    text = Metrics(api.backend.books, settings=lambda: settings).text().decode()
    (info,) = (
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pinfold_cpu_manager_policy_info"
    )
    told = dict(one.split("=") for one in info.labels["options"].split(","))
    assert told["lending.use"] == "true"
    assert told["lending.lookRate"] == "40Hz"
    assert told["cache.classes"] == "fast thin"
    assert told["irqs.housekeeping"] == "0-1"


def test_what_is_lent_is_counted(tmp_path: Path) -> None:
    with served(tmp_path / "s", settings=NodeSettings(idle_side=True)) as api:
        api.ask("POST", "/v1/pods", manifest("db", "2"))
        assert scrape(api)["pinfold_lent_cpus"] == 0
        api.call(api.backend.books.lend(CPUSet([3])))
        assert scrape(api)["pinfold_lent_cpus"] == 1


def test_the_cap_of_best_effort_is_told_while_there_is_one(tmp_path: Path) -> None:
    with served(tmp_path / "s", settings=NodeSettings(idle_side=True)) as api:
        api.do(api.backend.watch)
        assert "pinfold_best_effort_cap_cpus" not in scrape(api)
        api.call(api.backend.books.lease.cap(1.5))
        assert scrape(api)["pinfold_best_effort_cap_cpus"] == 1.5


def test_metrics_of_protected_memory_are_there_from_1_36_on(tmp_path: Path) -> None:
    prefix = "pinfold_memory_qos_node_memory"
    tiers, old = MemoryQoS(Reservation.TIERED), MemoryQoS(Reservation.UNTIERED)
    gib = 1 << 30

    def told(name: str, settings: NodeSettings) -> dict[str, float]:
        with served(tmp_path / name, settings=settings) as api:
            limits = {"memory": "1Gi", "cpu": "1"}
            own = manifest("own", "1")
            own["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
            part = manifest("part", "1")
            part["spec"]["containers"][0]["resources"] = {"requests": {"memory": "3Gi"}}
            for pod in (own, part):
                assert api.ask("POST", "/v1/pods", pod).status == 201
            return {n: v for n, v in scrape(api).items() if n.startswith(prefix)}

    names = (f"{prefix}_min_bytes", f"{prefix}_low_bytes")
    in_tiers = told("a", NodeSettings(memory_qos=tiers))
    assert in_tiers == dict(zip(names, (gib, 3 * gib), strict=True))
    unprotected = told("b", NodeSettings(memory_qos=MemoryQoS()))
    assert unprotected == dict.fromkeys(names, 0.0)
    assert told("c", NodeSettings(memory_qos=old, kubelet_version=V1_35)) == {}
    assert told("d", NodeSettings()) == {}


def test_every_metric_is_documented_and_no_other(tmp_path: Path) -> None:
    gate = {"PodLevelResourceManagers": True}
    config = replace(ALIGNED, feature_gates=gate)
    settings = NodeSettings(memory_qos=MemoryQoS())
    with served(tmp_path / "s", machine="2s4c2t", config=config, settings=settings) as api:
        _every_metric_is_documented_and_no_other(api, tmp_path)


def _every_metric_is_documented_and_no_other(api: Served, tmp_path: Path) -> None:
    api.do(api.backend.watch)
    api.ask("POST", "/v1/pods", manifest("wide", "20"))
    books = api.backend.books
    alone: Any = lambda port: port  # noqa: E731 - nothing stands in front of the ports
    others = (
        keeps_interrupts_off(books, InterruptOptions(use=True), tmp_path, alone, 60.0),
        *divides_caches(books, CacheOptions(use=True), tmp_path, alone, 60.0),
        keeps_domains(books, 60.0),
    )

    def figures() -> Iterator[Figure]:
        yield from api.backend.figures()
        for one in others:
            yield from one.figures()

    text = (
        Metrics(books, figures, api.backend.plugins, settings=api.backend.settings).text().decode()
    )
    exposed = set(re.findall(r"^# TYPE (pinfold_\w+) (\w+)$", text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(pinfold_\w+)` \| (\w+) ", PAGE.read_text(), re.MULTILINE))
    assert exposed == documented
