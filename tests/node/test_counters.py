"""What counts as a request and as an error, by manager and container, as with the kubelet."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from pinfold.adapters.nri import PluginCounters
from pinfold.core.devices.devices import Device
from pinfold.node.counters import ALLOCATE_SECONDS, Counters, Durations
from pinfold.ports.devices import CountsRegistrations
from pinfold.web.documents import counters_document
from pinfold.web.metrics import Metrics
from tests.scenes.device_plugin_peer import (
    WIDGET,
    scene,
    some_devices,
)
from tests.scenes.manager_harness import ALL_MANAGERS, STATIC, Harness, manifest, run_virtually
from tests.scenes.waiting import until

GPU = "example.com/gpu"

SINGLE = replace(ALL_MANAGERS, topology_manager_policy="single-numa-node")
PINNING = ("pinning_requests", "pinning_errors", "memory_pinning_requests", "memory_pinning_errors")


def counted(
    config: Any, *pods: dict[str, Any], faults: set[int] | None = None, machine: str = "2s4c1t"
) -> tuple[Counters, str]:
    """The counters after some pods, and the metrics then."""

    async def scenario() -> tuple[Counters, str]:
        node = Harness(machine=machine, config=config)
        node.plugins.put_devices(GPU, *(Device(f"g{n}", numa_nodes=(n,)) for n in (0, 1)))
        await node.start()
        node.plugins.seconds = 1.0
        node.plugins.faults.fail_at = faults or set()
        for pod in pods:
            await node.admit(pod, wait=False)
        counters, text = (
            node.books.counters,
            Metrics(node.books, plugins=node.plugins).text().decode(),
        )
        await node.kill()
        return counters, text

    return run_virtually(scenario())


def pinning(counters: Counters) -> tuple[int, ...]:
    return tuple(getattr(counters, name) for name in PINNING)


@pytest.mark.parametrize(
    ("config", "pod", "expected"),
    [
        pytest.param(SINGLE, manifest("a", "1", "2"), (2, 0, 2, 0), id="each-container"),
        pytest.param(SINGLE, manifest("a", "1", "500m"), (1, 0, 2, 0), id="shared-cpus"),
        pytest.param(SINGLE, manifest("a", ""), (0, 0, 0, 0), id="best-effort"),
        pytest.param(SINGLE, manifest("a", "1", init=("1",)), (2, 0, 2, 0), id="init"),
        # The merge refuses the second container: only the first was allocated for.
        pytest.param(SINGLE, manifest("a", "1", "5"), (1, 0, 1, 0), id="merge"),
        pytest.param(
            replace(STATIC, topology_manager_policy="none"),
            manifest("a", "1", "9", "1"),
            (2, 1, 0, 0),
            id="no-alignment",
        ),
        pytest.param(
            replace(ALL_MANAGERS, topology_manager_policy="none"),
            manifest("a", "1", "9", "1"),
            # The CPU manager fails for the second before the memory manager is asked.
            (2, 1, 1, 0),
            id="cpus-before-memory",
        ),
        pytest.param(
            replace(ALL_MANAGERS, topology_manager_policy="none"),
            manifest("a", "1", more={"memory": "4000Gi"}),
            (1, 0, 1, 1),
            id="memory",
        ),
        pytest.param(
            replace(SINGLE, topology_manager_scope="pod"),
            manifest("a", "3", "3"),
            (0, 0, 0, 0),
            id="merge-of-the-pod",
        ),
    ],
)
def test_pinning(config: Any, pod: dict[str, Any], expected: tuple[int, ...]) -> None:
    counters, _ = counted(config, pod)
    assert pinning(counters) == expected
    assert counters.admissions == counters.alignment_requests == 1


def test_a_plugin_that_refuses_comes_before_cpus_and_memory() -> None:
    pods = manifest("a", "1", more={GPU: "1"}), manifest("b", "1", more={GPU: "1"})
    counters, text = counted(SINGLE, *pods, faults={2})
    assert pinning(counters) == (1, 0, 1, 0)
    assert counters.alignment_errors == 1
    one = counters.device_allocations[GPU]
    # Those that failed took their time, too.
    assert (one.count, one.seconds) == (2, 2.0)
    samples = {
        sample.name + sample.labels.get("le", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("resource_name") == GPU
    }
    name = "pinfold_device_plugin_alloc_duration_seconds"
    assert samples[f"{name}_count"] == samples[f"{name}_bucket+Inf"] == 2
    assert (samples[f"{name}_bucket0.5"], samples[f"{name}_bucket2.5"]) == (0, 2)
    assert samples["pinfold_devices_capacity"] == samples["pinfold_devices_allocatable"] == 2
    assert samples["pinfold_devices_in_use"] == 1


def test_alignment_to_numa_nodes_by_scope() -> None:
    pods = manifest("a", "1", "1"), manifest("b", ""), manifest("c", "5")
    counters, _ = counted(SINGLE, *pods)
    assert counters.aligned == {"container/numa_node": 3, "container/uncore_cache": 2}
    assert counters.alignment_failures == {"container/numa_node": 1}
    assert counters.alignment_errors == 1
    counters, _ = counted(replace(SINGLE, topology_manager_scope="pod"), *pods)
    assert counters.aligned["pod/numa_node"] == 2
    assert counters.alignment_failures == {"pod/numa_node": 1}
    restricted, _ = counted(ALL_MANAGERS, *pods)
    assert "container/numa_node" not in restricted.aligned, "only where it is promised"


def test_alignment_to_cores() -> None:
    config = replace(
        STATIC,
        cpu_manager_policy_options={"full-pcpus-only": "true"},
        topology_manager_policy="none",
    )
    pods = manifest("even", "2"), manifest("odd", "1")
    counters, text = counted(config, *pods, machine="1s4c2t")
    assert counters.aligned["container/physical_cpu"] == 1
    assert counters.alignment_failures["container/physical_cpu"] == 1
    failure = "pinfold_container_aligned_compute_resources_failure_count"
    assert f'{failure}{{boundary="physical_cpu",scope="container"}} 1.0' in text
    assert "numa_node" not in "".join(line for line in text.splitlines() if failure in line)
    assert counters.alignment_errors == 0, "policy none counts none"


def test_memory_by_numa_node() -> None:
    _, text = counted(SINGLE, manifest("a", "1", more={GPU: "1"}))
    name = "pinfold_memory_manager_allocated_bytes"
    assert f'{name}{{memory_type="memory",numa_node="0"}} 6.7108864e+07' in text
    assert f'{name}{{memory_type="memory",numa_node="1"}} 0.0' in text


def test_every_accepted_registration_counts() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(1))
            await plugin.register()
            port: object = found.server
            assert isinstance(port, CountsRegistrations)
            await until(lambda: found.server.registrations() == {WIDGET: 2})
            with pytest.raises(grpc.aio.AioRpcError):
                await plugin.register(version="v2")
            assert found.server.registrations() == {WIDGET: 2}

    asyncio.run(scenario())


def test_durations_fill_every_bucket_above() -> None:
    durations = Durations()
    for seconds in (0.001, 0.3, 99.0):
        durations.add(seconds, ALLOCATE_SECONDS)
    assert [durations.buckets[b] for b in (0.005, 0.25, 0.5, 10.0)] == [1, 1, 2, 2]
    assert durations.count == 3
    assert durations.seconds == pytest.approx(99.301)


def test_the_document_has_every_counter() -> None:
    counters = Counters()
    counters.count_allocate(GPU, 0.5)
    document = msgspec.to_builtins(counters_document(counters))
    assert document.keys() == set(Counters.__struct_fields__)
    assert document["device_allocations"] == {GPU: {"count": 1, "seconds": 0.5}}
    assert document["memory_pinning_requests"] == 0


def test_what_nri_counts() -> None:
    counters = PluginCounters(registrations=2, updates=7)
    counters.methods["CreateContainer"].add(0.25, refused=True, failed=False, late=False)
    figures = {(f.name, *f.labels.values()): f.value for f in counters.figures()}
    assert figures["pinfold_nri_registrations",] == 2
    assert figures["pinfold_nri_updates",] == 7
    assert figures["pinfold_nri_calls", "CreateContainer"] == 1
    assert figures["pinfold_nri_calls_refused", "CreateContainer"] == 1
    assert figures["pinfold_nri_call_seconds", "CreateContainer"] == 0.25


# --------------------------------------------------------------------- of the node, of a pod

WHOLE = replace(
    ALL_MANAGERS,
    topology_manager_policy="best-effort",
    topology_manager_scope="pod",
    feature_gates={"PodLevelResourceManagers": True},
)


def whole(budget: str, *cpus: str, init: tuple[str, ...] = ()) -> dict[str, Any]:
    """A pod with resources of its own; containers without CPUs share."""
    limits = {"cpu": budget, "memory": "1Gi"}
    return manifest("whole", *cpus, init=init, resources={"limits": limits, "requests": limits})


@pytest.mark.parametrize(
    ("config", "pod", "allocations", "errors", "assignments"),
    [
        pytest.param(
            SINGLE,
            manifest("a", "1", "500m", more={"hugepages-2Mi": "0"}),
            {"cpu/node": 1, "memory/node": 2},
            {},
            {"cpu/node_exclusive": 1, "memory/node_exclusive": 2},
            id="of-the-node",
        ),
        pytest.param(
            replace(ALL_MANAGERS, topology_manager_policy="none"),
            manifest("a", "1", more={"memory": "4000Gi"}),
            {"cpu/node": 1},
            {"memory/node": 1},
            {"cpu/node_exclusive": 1},
            id="no-memory",
        ),
        pytest.param(
            replace(STATIC, topology_manager_policy="none"),
            manifest("a", "1", "9", "1"),
            {"cpu/node": 1},
            {"cpu/node": 1},
            {"cpu/node_exclusive": 1},
            id="no-cpus",
        ),
        pytest.param(
            WHOLE,
            whole("3", "2", "", init=("1", "")),
            {"cpu/pod": 4, "memory/pod": 4},
            {},
            {
                "cpu/pod_exclusive": 2,
                "cpu/pod_shared": 2,
                "memory/pod_exclusive": 2,
                "memory/pod_shared": 2,
            },
            id="of-a-pod",
        ),
        pytest.param(WHOLE, whole("2", "2", ""), {}, {"cpu/pod": 1}, {}, id="an-empty-pool"),
        pytest.param(
            replace(WHOLE, topology_manager_scope="container"),
            whole("3", "2", ""),
            {"cpu/node": 1},
            {},
            {"cpu/node_exclusive": 1},
            id="by-container",
        ),
    ],
)
def test_allocations_and_assignments(
    config: Any,
    pod: dict[str, Any],
    allocations: dict[str, int],
    errors: dict[str, int],
    assignments: dict[str, int],
) -> None:
    counters, _ = counted(config, pod)
    of_cpus = config.topology_manager_scope == "container" and "resources" in pod["spec"]
    found = (
        counters.resource_allocations,
        counters.resource_allocation_errors,
        counters.container_assignments,
    )
    told = [
        {key: n for key, n in one.items() if n and not (of_cpus and key.startswith("memory"))}
        for one in found
    ]
    assert told == [allocations, errors, assignments]


def test_a_pod_as_a_whole_is_one_request_for_memory_and_one_for_each_of_its_own() -> None:
    counters, _ = counted(WHOLE, whole("3", "2", "", init=("1", "")))
    assert pinning(counters) == (2, 0, 4, 0)
    refused, _ = counted(WHOLE, whole("2", "2", ""))
    assert pinning(refused) == (0, 1, 0, 0)
    assert refused.alignment_errors == 1


def test_metrics_of_pods_as_a_whole_are_there_with_their_gate() -> None:
    _, text = counted(WHOLE, whole("3", "2", ""))
    samples = {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "resource_manager" in sample.name
    }
    assert samples == {
        ("pinfold_resource_manager_allocations_total", "cpu", "pod"): 2,
        ("pinfold_resource_manager_allocations_total", "memory", "pod"): 2,
        ("pinfold_resource_manager_container_assignments", "pod_exclusive", "cpu"): 1,
        ("pinfold_resource_manager_container_assignments", "pod_shared", "cpu"): 1,
        ("pinfold_resource_manager_container_assignments", "pod_exclusive", "memory"): 1,
        ("pinfold_resource_manager_container_assignments", "pod_shared", "memory"): 1,
    }
    _, without = counted(SINGLE, manifest("a", "1"))
    assert "resource_manager" not in without
    assert "memory_qos" not in without
