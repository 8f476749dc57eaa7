"""Interrupts of this machine's kernel, kept off a CPU, and an irqbalance that is told.

What they had is put back at the end, whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pinfold.adapters.irq import KernelInterrupts
from pinfold.adapters.irq.irqbalance import IrqBalance
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux import interrupts
from pinfold.ports.interrupts import Balancer
from tests.scenes.interrupts_contract import check_interrupts
from tests.scenes.waiting import wait_until

ONLINE = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
LAST = CPUSet([max(ONLINE)])


def affinities() -> dict[str, CPUSet]:
    return {interrupts.number_of(p): interrupts.affinity(p) for p in interrupts.places()}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    if os.geteuid() != 0 or len(ONLINE) < 2:
        pytest.skip("needs root and two CPUs")
    before = {place: interrupts.affinity(place) for place in interrupts.places()}
    try:
        yield
    finally:
        for place, cpus in before.items():
            if Path(place).exists() and interrupts.affinity(place) != cpus:
                interrupts.set_affinity(place, cpus)


class ThisMachine:
    online = ONLINE

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def agent(self) -> KernelInterrupts:
        return KernelInterrupts(self.folder / "interrupts.json", self.folder / "sockets")

    def affinities(self) -> Mapping[str, CPUSet]:
        return affinities()

    def write(self, number: str, cpus: CPUSet) -> None:
        interrupts.set_affinity(f"/proc/irq/{number}/smp_affinity_list", cpus)


def test_the_contract(tmp_path: Path) -> None:
    machine = ThisMachine(tmp_path)
    asyncio.run(check_interrupts(machine))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_moved_is_tried_once(tmp_path: Path) -> None:
    """The kernel says so by an I/O error, or by a file that root cannot write either."""
    agent = ThisMachine(tmp_path).agent()
    look = asyncio.run(agent.keep_off(LAST, ONLINE - LAST))
    for one in look.fixed:
        with pytest.raises(OSError, match=r"Input/output error|Operation not permitted"):
            interrupts.set_affinity(f"/proc/irq/{one.number}/smp_affinity_list", ONLINE - LAST)
    assert asyncio.run(agent.keep_off(LAST, ONLINE - LAST)).fixed == look.fixed
    asyncio.run(agent.restore())


@pytest.fixture
def irqbalance(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """An irqbalance of the distribution's package, whose socket is in a place of its own."""
    if (program := shutil.which("irqbalance")) is None:
        program = unpacked(tmp_path / "package")
    sockets = tmp_path / "run"
    sockets.mkdir()
    # Its folder is compiled in: a mount namespace of its own has ours there.
    script = (
        "mount -t tmpfs none /run && mkdir /run/irqbalance && "
        f"mount --bind {sockets} /run/irqbalance && exec {program} -f -t 1"
    )
    with subprocess.Popen(["unshare", "-m", "sh", "-c", script], text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def unpacked(folder: Path) -> str:
    """The program of the distribution's package, without installing it."""
    folder.mkdir()
    for command in (["apt-get", "download", "irqbalance"], ["sh", "-c", "dpkg -x *.deb ."]):
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"no irqbalance: {error}")
        if done.returncode:
            pytest.skip(f"no irqbalance: {done.stderr.decode()[-200:]}")
    program = folder / "usr/sbin/irqbalance"
    if subprocess.run([program, "--version"], capture_output=True, check=False).returncode > 1:
        pytest.skip("no irqbalance: the package's program does not start")
    return str(program)


def test_irqbalance_is_told(irqbalance: subprocess.Popen[str], tmp_path: Path) -> None:
    sockets, record = tmp_path / "run", tmp_path / "interrupts.json"
    wait_until(lambda: any(sockets.iterdir()) or irqbalance.poll() is not None)
    assert irqbalance.poll() is None, "it has ended by itself"

    def banned(agent: KernelInterrupts, cpus: CPUSet) -> Balancer:
        (found,) = asyncio.run(agent.keep_off(cpus, ONLINE - cpus)).balancers
        assert not found.problem
        return found

    # What it has banned by itself stays so.
    agent = KernelInterrupts(record, sockets)
    first = asyncio.run(agent.keep_off(LAST, ONLINE - LAST)).balancers[0]
    assert first.pid == irqbalance.pid
    wait_until(lambda: banned(agent, LAST).banned == first.banned | LAST)
    # It moves none back, in several of its rounds.
    for _ in range(3):
        look = asyncio.run(agent.keep_off(LAST, ONLINE - LAST))
        assert not look.contested
        time.sleep(1.1)  # a round of irqbalance, of which nobody else hears
    # Killed, and started anew with nobody to care for.
    again = KernelInterrupts(record, sockets)
    asyncio.run(again.keep_off(CPUSet(), ONLINE))
    heard = IrqBalance(sockets)
    wait_until(lambda: heard.plan(CPUSet(), ())[0].balancer.banned == first.banned)
    assert not record.exists()


def test_an_irqbalance_that_cannot_be_told_is_named(
    irqbalance: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_until(lambda: any((tmp_path / "run").iterdir()) or irqbalance.poll() is not None)
    agent = KernelInterrupts(tmp_path / "interrupts.json", tmp_path / "nowhere")
    (found,) = asyncio.run(agent.keep_off(LAST, ONLINE - LAST)).balancers
    assert "has no socket" in found.problem
    assert "IRQBALANCE_BANNED_CPULIST" in found.problem
    asyncio.run(agent.restore())
