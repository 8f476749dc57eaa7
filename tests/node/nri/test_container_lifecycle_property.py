"""Random lives of pods, with faults and restarts: the kernel never lets two own a CPU."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.ports.errors import PortError
from pinfold.ports.nri import RefusedError
from tests.scenes.lifecycle_harness import LifecycleHarness, guaranteed
from tests.scenes.manager_harness import run_virtually
from tests.scenes.random_life import step

AMOUNTS = (1, 2, 2, 3, 4, 0.5, 6, 1.5, 2.7)


async def _step(h: LifecycleHarness, choice: random.Random, number: int) -> None:
    await step(
        h,
        choice,
        begin=lambda: (f"p{number}", choice.choice(("guaranteed", "burstable"))),
        mixed=lambda: choice.random() < 0.3,
        amount=lambda: guaranteed(choice.choice(AMOUNTS)),
        again=lambda before: before,
    )


async def _life(seed: int, length: int, *, faults: bool) -> None:
    choice = random.Random(seed)  # noqa: S311 - reproducible
    machine = choice.choice(("1s4c2t", "2s2c2t", "1s8c1t"))
    over_cri = choice.random() < 0.5
    h = LifecycleHarness(
        machine=machine,
        over_cri=over_cri,
        listed=choice.random() < 0.5,
        version=choice.choice((1, 2)),
    )
    await h.start()
    for number in range(length):
        if faults and choice.random() < 0.2:
            ports = (h.store.faults, h.cgroups.faults, h.gates.faults, h.node.record_faults)
            port = choice.choice((*ports, h.node.gate_faults, h.node.creation_faults))
            port.fail_at = {port.calls + choice.randrange(1, 4)}
        with suppress(RefusedError, *([PortError] if faults else [])):
            await _step(h, choice, number)
        for port in (h.store.faults, h.cgroups.faults, h.gates.faults, h.node.gate_faults):
            port.fail_at = set()
        if h.node.plugin is None:
            await h.start()
        if faults:
            # What the kernel refused is made right by the next reconciliation; here by a restart.
            await h.kill()
            await h.start()
        await h.until_moved()
        h.check()
        if not faults:
            h.check_first_instructions()
    await h.settle()
    await h.until_moved()
    h.check()
    assert h.ledger.behind == 0
    assert h.recorded() == h.kernel()
    await h.kill()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_lives_of_pods(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, faults=False))


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_lives_of_pods_with_faults(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, faults=True))


@pytest.mark.parametrize("seed", range(3))
def test_long_lives(seed: int) -> None:
    run_virtually(_life(seed, 1000, faults=False))
