"""The kubelet's faults, each on a machine where it shows, beside the sound answer."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.cpu.allocation import take_packed
from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.kubelet.faults import (
    BUBBLE_LEAKS,
    BUBBLE_TWICE,
    COMBINATION_OVERWRITTEN,
    CPUS_NOT_FREE,
    DISTRIBUTION_HANGS,
    FAULTS,
    KUBELET,
    MEMORY_WRAPS_AROUND,
    NO_MEMORY_REFUSED,
    SOUND,
    AllocationRules,
    UpstreamFaultError,
)
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.planning.planner import Planner
from tests.roots import ROOT
from tests.scenes.strategies import free_cpus, topologies

DOCS = ROOT / "docs"
HYBRID = CPUTopology.from_rows([(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 2, 0, 0, 0), (3, 3, 0, 0, 0)])
"""One core of two threads, two cores of one: on average a core has one CPU."""


def machine(form: str) -> CPUTopology:
    return kubelet_view(parse_short_form(form)).topology


def without(topology: CPUTopology, cpus: str) -> int:
    return topology.all & ~CPUSet.parse(cpus).mask


def answer(mask: int) -> str:
    return str(CPUSet.from_mask(mask))


def test_a_partly_used_core_passes_for_a_free_one() -> None:
    free = without(HYBRID, "0")
    assert answer(take_packed(HYBRID, free, 2, rules=KUBELET)) == "0-1"
    assert answer(take_packed(HYBRID, free, 2, rules=SOUND)) == "2-3"


def test_a_partly_used_socket_passes_for_a_free_one() -> None:
    uneven = CPUTopology.from_rows([(cpu, cpu, int(cpu > 3), 0, 0) for cpu in range(6)])
    free = without(uneven, "0")
    assert answer(take_packed(uneven, free, 5, rules=KUBELET)) == "0-4"
    assert answer(take_packed(uneven, free, 5, rules=SOUND)) == "1-5"


def test_a_distributed_request_never_ends() -> None:
    topology = machine("1s4n16c2t")
    free = without(topology, "0-2,8-10,16-19,24-27")
    with pytest.raises(UpstreamFaultError, match="distributing 14 CPUs") as error:
        take_distributed(topology, free, 14, 2, rules=KUBELET)
    assert error.value.fault is DISTRIBUTION_HANGS
    sound = take_distributed(topology, free, 14, 2, rules=SOUND)
    assert answer(sound) == "4-7,12-15,20-23,28-29"


def test_the_best_combination_is_overwritten() -> None:
    topology = machine("1s6n12c1t")
    free = without(topology, "7")
    assert answer(take_distributed(topology, free, 8, rules=KUBELET)) == "0-5,10-11"
    assert answer(take_distributed(topology, free, 8, rules=SOUND)) == "0-5,8-9"


@given(st.data(), st.booleans())
def test_sound_rules_give_free_cpus_only(data: st.DataObject, spread: bool) -> None:
    topology = data.draw(topologies())
    free = data.draw(free_cpus(topology))
    n = data.draw(st.integers(1, len(topology.rows)))
    group = data.draw(st.sampled_from([1, max(topology.cpus_per_core, 1)]))
    align = data.draw(st.booleans())
    with suppress(AllocationError):
        cpus = take_packed(topology, free, n, spread=spread, align_uncore=align, rules=SOUND)
        assert cpus & ~free == 0
        assert cpus.bit_count() == n
    with suppress(AllocationError):
        cpus = take_distributed(topology, free, n, group, spread=spread, rules=SOUND)
        assert cpus & ~free == 0
        assert cpus.bit_count() == n


@given(st.data())
def test_sound_rules_always_serve_what_is_free(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    free = data.draw(free_cpus(topology))
    n = data.draw(st.integers(1, max(1, free.bit_count())))
    if n > free.bit_count():
        return
    assert take_packed(topology, free, n, rules=SOUND).bit_count() == n
    assert take_distributed(topology, free, n, 1, rules=SOUND).bit_count() == n


def plan(
    form: str, cpus: int, reserved: str, rules: AllocationRules, options: dict[str, str]
) -> tuple[str | None, str | None, str]:
    """What becomes of one pod: the reason, the fault's slug, its CPUs."""
    both = {"cpu": Quantity(cpus), "memory": Quantity.parse("1Mi")}
    pod = Pod(uid="p", name="p", containers=(Container("c", both, both),))
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet.parse(reserved),
        cpu_manager_policy_options=options,
    )
    (placement,) = Planner(parse_short_form(form), config, rules=rules).plan([pod]).pods
    fault = placement.decision.fault
    return (
        placement.decision.reason,
        None if fault is None else fault.slug,
        str(placement.containers[0].cpus),
    )


def test_a_plan_refuses_what_would_hang_and_names_the_fault() -> None:
    request = ("1s4n16c2t", 14, "0-2,8-10,16-19,24-27")
    options = {"distribute-cpus-across-numa": "true", "full-pcpus-only": "true"}
    refused = ("UnexpectedAdmissionError", "distribution-hangs", "")
    assert plan(*request, KUBELET, options) == refused
    assert plan(*request, SOUND, options) == (None, None, "4-7,12-15,20-23,28-29")


def test_a_plan_shows_an_overwritten_combination_as_it_is() -> None:
    request = ("1s6n12c1t", 8, "7")
    options = {"distribute-cpus-across-numa": "true"}
    assert plan(*request, KUBELET, options) == (None, None, "0-5,10-11")
    assert plan(*request, SOUND, options) == (None, None, "0-5,8-9")


def test_rules_are_the_faults_and_nothing_else() -> None:
    """Each rule of its own brings its own fault only."""
    assert {fault.slug for fault in FAULTS} == {
        DISTRIBUTION_HANGS.slug,
        CPUS_NOT_FREE.slug,
        COMBINATION_OVERWRITTEN.slug,
        MEMORY_WRAPS_AROUND.slug,
        NO_MEMORY_REFUSED.slug,
        BUBBLE_LEAKS.slug,
        BUBBLE_TWICE.slug,
    }
    averages = replace(SOUND, average_sizes=True)
    topology = machine("1s4n16c2t")
    free = without(topology, "0-2,8-10,16-19,24-27")
    assert take_distributed(topology, free, 14, 2, rules=averages) & ~free == 0
    assert answer(take_packed(HYBRID, without(HYBRID, "0"), 2, rules=averages)) == "0-1"


@pytest.mark.parametrize("page", ["kubelet-differences.md", "differences-by-example.md"])
def test_every_fault_is_in_the_documentation(page: str) -> None:
    text = (DOCS / page).read_text()
    missing = [fault.slug for fault in FAULTS if f"`{fault.slug}`" not in text]
    assert not missing
