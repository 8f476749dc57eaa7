"""The controllers under load that was recorded of real programs: still, bounded, and back again."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from pinfold.core.controllers.lending import Lend
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.controllers.suppression import Cap, Suppressed, Suppression
from pinfold.core.kubelet.own_policies import (
    LendingOptions,
    LoadDrivenOptions,
    SuppressionOptions,
    percent,
    seconds,
)
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.lending_node import STEP, LendingNode
from tests.scenes.load_driven_node import SimulatedNode, Work
from tests.scenes.recorded_load import SAMPLE, recorded

RECORDING = recorded()
PROGRAMS = sorted(RECORDING.origin.programs)
LONG = len(RECORDING.seconds)
BY_LOAD = LoadDrivenOptions(use=True)
COUNT = 2
"""CPUs that a program requests: what it uses at its peak."""


def test_the_sample_is_what_it_says() -> None:
    assert SAMPLE.stat().st_size < 200_000
    assert LONG >= 400
    assert set(PROGRAMS) == {"archive", "compiler", "poller", "server", "tests"}
    for name in PROGRAMS:
        assert all(0 <= used <= RECORDING.origin.cpus * 1.1 for used in RECORDING.usage(name))
        assert RECORDING.demand(name, 2.0)(LONG + 3) == RECORDING.demand(name, 2.0)(3)


@pytest.mark.parametrize("jumps", [False, True], ids=["steady-clock", "jumping-clock"])
@pytest.mark.parametrize("crowd", [0.0, 12.0], ids=["alone", "crowded"])
def test_cpus_by_load_stay_within_their_times_and_come_back(*, jumps: bool, crowd: float) -> None:
    chance = random.Random(1)  # noqa: S311 - a simulation
    node = SimulatedNode(BY_LOAD, cpus=16, seed=1)
    node.crowd = crowd
    for name in PROGRAMS:
        node.start(Owner(name, "c"), Work(COUNT, RECORDING.demand(name, COUNT)))
    low = dict.fromkeys(node.works, 0)
    for _ in range(3 * LONG):
        if jumps and chance.random() < 0.01:
            node.skip(chance.choice([-1e6, -3.0, 7.0, 3600.0]))
            low = dict.fromkeys(node.works, 0)
        if jumps and chance.random() < 0.005:
            node.restart()
            low = dict.fromkeys(node.works, 0)
        node.run(1)
        for owner in node.works:
            low[owner] = low[owner] + 1 if _is_low(node, owner) else 0
            # Who rests has nothing of his own any more.
            assert low[owner] <= seconds(BY_LOAD.demote_after) + seconds(BY_LOAD.min_exclusive) + 2
    least = {"Promote": seconds(BY_LOAD.min_exclusive), "Demote": seconds(BY_LOAD.min_shared)}
    for owner in node.works:
        moves = [(at, what) for at, one, what in node.moves if one == owner]
        assert [what for _, what in moves[::2]] == ["Promote"] * len(moves[::2])
        for (began, what), (end, _) in pairwise(moves):
            assert end - began >= least[what]
    # As often as the least times allow would be back and forth all the time.
    cycle = sum(least.values())
    for owner in node.works:
        assert sum(one == owner for _, one, _ in node.moves) <= 2 * 3 * LONG / cycle / 1.3


def _is_low(node: SimulatedNode, owner: Owner) -> bool:
    """Whether an owner uses so little at this second that it could be demoted for it."""
    if owner not in node.own:
        return False
    used = min(node.works[owner].demand(node.seconds), COUNT)
    with_which = node.promoted_with.get(owner) or 0.0
    return used < percent(BY_LOAD.demote_usage) * COUNT and used < with_which / 2


OWNER = Owner("recorded", "c")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_lent_is_back_when_a_recorded_owner_wants_it(name: str) -> None:
    peak = RECORDING.peak(name) if name == "poller" else 0.9
    wants = RECORDING.fine_demand(name, peak)
    options = LendingOptions(use=True)
    above, busy_for = percent(options.return_above), 0.0

    def use(at: float, _: int) -> float:
        nonlocal busy_for
        wanted = wants(at)
        busy_for = busy_for + STEP if node.lent and wanted > above else 0.0
        # What is above the bound for 100 ms has its CPU for itself, within a look or two.
        assert busy_for <= 0.15
        return wanted

    node = LendingNode(use, options=options)
    node.run(LONG)
    assert any(kind is Lend for _, kind, _, _ in node.events)
    for (began, kind, _, _), (end, _, _, _) in pairwise(node.events):
        if kind is not Lend:
            assert end - began >= seconds(options.pause)
    assert len(node.events) <= 2 * LONG / seconds(options.pause)
    if name == "poller":
        assert node.given / node.unused > 0.9
        assert len(node.events) == 1


@pytest.mark.parametrize("jumps", [False, True], ids=["steady-clock", "jumping-clock"])
def test_the_cap_follows_a_recorded_load_and_comes_back(*, jumps: bool) -> None:
    chance = random.Random(1)  # noqa: S311 - a simulation
    options, cpus = SuppressionOptions(use=True), CPUSet(range(16))
    controller = Suppression(options)
    demands = [RECORDING.demand(name, 2.5) for name in PROGRAMS]
    room = percent(options.threshold) * len(cpus)
    memory, cap, clock, changes, used = Suppressed(), None, 0.0, [], 0.0
    for at in range(3 * LONG):
        clock += 1.0
        if jumps and chance.random() < 0.01:
            clock += chance.choice([-1e6, -3.0, 7.0, 3600.0])
        used = sum(demand(at) for demand in demands)
        borrowed = min(cap or 0.0, len(cpus) - used)
        seen = Seen(
            clock,
            cpus,
            cpus,
            dict.fromkeys(cpus, 1 - (used + borrowed) / len(cpus)),
            {
                Owner("a", "c"): SeenContainer(CPUSet(), QOSClass.BURSTABLE, Load(1.0, used)),
                Owner("b", "c"): SeenContainer(
                    CPUSet(), QOSClass.BEST_EFFORT, Load(1.0, borrowed), borrows=True
                ),
            },
            cap=cap,
        )
        memory, proposals = controller.step(memory, seen)
        for one in proposals:
            assert isinstance(one, Cap)
            assert one.quota is not None
            cap = one.quota
            changes.append(cap)
            assert options.least_cpus <= cap <= max(options.least_cpus, room - used) + 1e-6
    # A cap by the rule alone would change with each second.
    assert len(changes) < 3 * LONG / 3
    # Once nobody else wants anything, all of it is back within the steps that lead there.
    rises = (room - options.least_cpus) / (percent(options.step_up) * len(cpus)) + 1
    for _ in range(round(seconds(options.hold) + rises) + 2):
        clock += 1.0
        idle = replace(seen, at=clock, cap=cap, idle=dict.fromkeys(cpus, 1.0))
        calm = {one: replace(it, load=Load(1.0, 0.0)) for one, it in idle.containers.items()}
        memory, proposals = controller.step(memory, replace(idle, containers=calm))
        cap = next((one.quota for one in proposals if isinstance(one, Cap)), cap)
    assert cap is not None
    assert cap >= room - 2 * percent(options.margin) * len(cpus)
