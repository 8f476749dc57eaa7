"""Places for seats on machines that are too large for all placements to be looked at."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.places import Room, Seat
from pinfold.core.moves.solver import EXACT_UP_TO, solve


def topology(sockets: int, cores: int, threads: int) -> CPUTopology:
    """A socket is a NUMA node and a cache."""
    rows = []
    for cpu in range(sockets * cores * threads):
        socket = cpu // (cores * threads)
        rows.append((cpu, cpu - cpu % threads, socket, socket, socket))
    return CPUTopology.from_rows(rows)


def spread(where: CPUTopology) -> Callable[[int], int]:
    nodes = where.numa_nodes.values()
    return lambda place: sum(bool(node & place) for node in nodes) - 1


@given(
    st.sampled_from([(4, 2, 2), (2, 4, 2), (2, 3, 4), (3, 6, 1)]),
    st.booleans(),
    st.lists(st.integers(1, 5), max_size=6),
    st.integers(1, 14),
    st.data(),
)
@settings(max_examples=300)
def test_who_comes_is_seated_among_the_others_or_not_at_all(
    form: tuple[int, int, int], whole_cores: bool, sizes: list[int], count: int, data: st.DataObject
) -> None:
    where = topology(*form)
    cores = [where.cores[core] for core in sorted(where.cores)]
    width = where.largest_core if whole_cores else 1
    atoms = cores if whole_cores else [1 << cpu for cpu in range(where.all.bit_count())]
    left = data.draw(st.permutations(atoms))
    seats = []
    for size in sizes:
        now, left = sum(left[:size]), left[size:]
        if now:
            fixed = data.draw(st.booleans())
            seats.append(Seat(now.bit_count(), now, where.all, spread(where), fixed=fixed))
    within = sum(data.draw(st.sets(st.sampled_from(cores), min_size=len(cores) // 2)))
    seats.append(Seat(count * width, 0, within, lambda _: 0))
    free = sum(left)
    found = solve(Room(where, free, whole_cores=whole_cores), seats)
    if found is None:
        return
    used = 0
    for seat, place in zip(seats, found, strict=True):
        assert place.bit_count() == seat.count
        assert not place & used
        assert place & ~(seat.within | seat.now) == 0
        assert place == seat.now or not seat.fixed
        if whole_cores:
            assert all(core & place in {0, core} for core in cores)
        used |= place
    assert where.all.bit_count() > EXACT_UP_TO
