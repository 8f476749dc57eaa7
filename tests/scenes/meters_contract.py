"""What every implementation of the meters' ports has to do."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

from pinfold.core.observation.rates import Counters, is_continued
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey
from pinfold.ports.observation import ContainerMeters, CPUMeter
from tests.scenes.waiting import wait_until

BUSY = ContainerKey("uid-busy", "main")
NOBODY = ContainerKey("uid-nobody", "main")


class Metered(Protocol):
    """A place with one container, ``BUSY``, that uses CPU time all the while."""

    @property
    def meters(self) -> ContainerMeters:
        """What is tried."""

    def make_anew(self) -> None:
        """Remove its cgroup, and make another one of the same name that is busy."""

    def remove(self) -> None:
        """Remove its cgroup."""


def check_container_meters(place: Metered) -> None:
    """A container that works, is made anew, and ends; and one that there never was."""
    meters = place.meters
    seen: list[Counters] = []

    def used_more() -> bool:
        found = meters.read([BUSY, NOBODY])
        assert found.keys() == {BUSY}
        seen.append(found[BUSY])
        return (seen[-1].usage or 0) > (seen[0].usage or 0)

    assert meters.used([NOBODY]) == {}
    wait_until(used_more)
    quick = meters.used([BUSY, NOBODY])
    assert quick.keys() == {BUSY}
    assert quick[BUSY] >= (seen[-1].usage or 0)
    assert all(is_continued(before, after) for before, after in pairwise(seen))
    if meters.wait_source:
        assert seen[-1].wait is not None
    else:
        assert any("wait" in text for text in meters.lacks())
    assert ("cpu" in seen[-1].pressure) == (meters.wait_source == "cpu.pressure")

    place.make_anew()
    again = wait_until(lambda: meters.read([BUSY]).get(BUSY))
    assert again is not None
    assert again.incarnation != seen[-1].incarnation
    assert not is_continued(seen[-1], again)

    place.remove()
    assert meters.used([BUSY]) == {}
    assert meters.read([BUSY]) == {}
    meters.retain([])
    meters.close()


def check_cpu_meter(meter: CPUMeter, cpus: CPUSet) -> None:
    """Every CPU, some, and none; what is idle only grows."""
    first = meter.idle()
    assert set(first) == set(cpus)
    one = CPUSet([max(cpus)])
    assert meter.idle(one).keys() == {max(cpus)}
    assert meter.idle(CPUSet()) == {}
    second = meter.idle()
    assert all(second[cpu] >= idle >= 0 for cpu, idle in first.items())
    for stalls in meter.pressure().values():
        assert stalls.some >= 0
    meter.close()
