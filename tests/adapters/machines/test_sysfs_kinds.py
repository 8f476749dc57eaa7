"""Kinds of cores: found, split and ranked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.machine.machine import Machine
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.sysfs_trees import CPU, machine, plain


def frequencies(*pairs: tuple[int, int]) -> dict[str, str]:
    """(maximum, base) in MHz by CPU; 0 leaves the file out."""
    files = plain(len(pairs))
    for cpu, (maximum, base) in enumerate(pairs):
        if maximum:
            files[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = f"{maximum}000\n"
        if base:
            files[f"{CPU}/cpu{cpu}/cpufreq/base_frequency"] = f"{base}000\n"
    return files


def kinds(found: Machine) -> list[tuple[str, dict[str, str]]]:
    return [(str(kind.cpus), dict(kind.info)) for kind in found.cpu_kinds]


def test_one_kind_is_none() -> None:
    assert machine(frequencies((3000, 2000), (3000, 2000))).cpu_kinds == ()
    assert machine(plain(2)).cpu_kinds == ()


def test_ranked_by_base_frequency() -> None:
    found = machine(frequencies((5000, 1900), (5000, 1900), (3900, 1400)))
    assert kinds(found) == [
        ("2", {"FrequencyMaxMHz": "3900", "FrequencyBaseMHz": "1400"}),
        ("0-1", {"FrequencyMaxMHz": "5000", "FrequencyBaseMHz": "1900"}),
    ]
    assert [cpu.kind for cpu in found.cpus] == [1, 1, 0]


def test_turbo_within_a_tenth_is_one_kind() -> None:
    assert machine(frequencies((5200, 1900), (5000, 1900))).cpu_kinds == ()
    assert len(machine(frequencies((6000, 1900), (5000, 1900))).cpu_kinds) == 2
    # Without a base frequency nobody knows whether a higher maximum is turbo.
    assert len(machine(frequencies((5200, 0), (5000, 0))).cpu_kinds) == 2


def test_nominal_frequency_where_there_is_no_base() -> None:
    files = frequencies((3000, 0), (4000, 0))
    files |= {f"{CPU}/cpu{cpu}/acpi_cppc/nominal_freq": f"{2000 + cpu}" for cpu in range(2)}
    assert kinds(machine(files)) == [
        ("0", {"FrequencyMaxMHz": "3000", "FrequencyBaseMHz": "2000"}),
        ("1", {"FrequencyMaxMHz": "4000", "FrequencyBaseMHz": "2001"}),
    ]
    files[f"{CPU}/cpu0/cpufreq/base_frequency"] = "1500000"
    assert "FrequencyBaseMHz" not in kinds(machine(files))[1][1]


def test_capacity_ranks_before_frequency() -> None:
    files = frequencies((3000, 2000), (2000, 1000))
    files |= {f"{CPU}/cpu0/cpu_capacity": "500", f"{CPU}/cpu1/cpu_capacity": "1024"}
    assert [str(kind.cpus) for kind in machine(files).cpu_kinds] == ["0", "1"]


def test_intel_hybrid_devices() -> None:
    files = plain(4) | {
        "sys/devices/cpu_core/cpus": "0-1\n",
        "sys/devices/cpu_atom/cpus": "2-3\n",
        "sys/devices/cpu_lowpower/cpus": "3\n",
    }
    assert kinds(machine(files)) == [
        ("2", {"CoreType": "IntelAtom"}),
        ("0-1", {"CoreType": "IntelCore"}),
        ("3", {"CoreType": "IntelLowPower"}),
    ]
    del files["sys/devices/cpu_lowpower/cpus"]
    assert [str(kind.cpus) for kind in machine(files).cpu_kinds] == ["2-3", "0-1"]


def test_arm_cores_by_their_identification() -> None:
    files = plain(4) | {"proc/hwloc-nofile-info": "Architecture: aarch64\n"}
    for cpu, (midr, capacity) in enumerate(
        [("0x410fd871", 718), ("0x410fd871", 700), ("0x410fd851", 1024), ("0x410fd851", 1017)]
    ):
        files[f"{CPU}/cpu{cpu}/regs/identification/midr_el1"] = f"{midr}\n"
        files[f"{CPU}/cpu{cpu}/cpu_capacity"] = f"{capacity}\n"
    assert kinds(machine(files)) == [
        ("0-1", {"LinuxCapacity": "700", "CPUPart": "0xd87"}),
        ("2-3", {"LinuxCapacity": "1017", "CPUPart": "0xd85"}),
    ]


def test_old_amd_is_never_hybrid() -> None:
    files = frequencies((3000, 0), (4000, 0))
    old = "vendor_id : AuthenticAMD\ncpu family : 25\nflags : lm\n"
    assert machine(files | {"proc/cpuinfo": old}).cpu_kinds == ()
    assert len(machine(files | {"proc/cpuinfo": old.replace("25", "26")}).cpu_kinds) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 2000, 3000, 3100]), st.sampled_from([0, 1000, 1500])),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(st.integers(0, 5), st.sampled_from([100, 200, 1024])),
    st.sets(st.integers(0, 5)),
)
def test_kinds_are_disjoint_and_of_online_cpus(
    pairs: list[tuple[int, int]], capacities: dict[int, int], atoms: set[int]
) -> None:
    files = frequencies(*pairs) | {"sys/devices/cpu_atom/cpus": str(CPUSet(atoms))}
    for cpu, capacity in capacities.items():
        files[f"{CPU}/cpu{cpu}/cpu_capacity"] = str(capacity)
    found = machine(files)
    assert [kind.kind for kind in found.cpu_kinds] == list(range(len(found.cpu_kinds)))
    assert len(found.cpu_kinds) != 1
    seen = CPUSet()
    for kind in found.cpu_kinds:
        assert kind.cpus
        assert kind.info
        assert kind.cpus.isdisjoint(seen)
        seen |= kind.cpus
    assert seen <= found.online
    assert found == machine(dict(reversed(files.items())))
