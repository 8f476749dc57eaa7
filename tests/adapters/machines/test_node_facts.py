"""What of a machine's settings is read, live and from a capture, and what is never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.adapters.machines.capture import capture_entries
from pinfold.adapters.machines.capture_file import pack, write_new
from pinfold.adapters.machines.discovery import open_tree, read_tree
from pinfold.adapters.machines.node_facts import (
    SIDE_FILE,
    open_settings,
    read_facts,
    read_kernel,
    reduce_swaps,
)
from pinfold.adapters.machines.tree import Tree
from pinfold.core.machine.kernel import Kernel
from pinfold.core.profile.check import Fact
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.sysfs_trees import CPU, memory_tree, plain

ONLINE, EXCLUSIVE = CPUSet.parse("0-3"), CPUSet.parse("2-3")
GOVERNOR = "/sys/devices/system/cpu/cpu{exclusive}/cpufreq/scaling_governor"
ASKED = (
    "/proc/sys/kernel/timer_migration",
    GOVERNOR,
    "parameter nohz_full",
    "program irqbalance",
    "swap devices",
    "idle latency",
)
SETTINGS = {
    "proc/sys/kernel/timer_migration": "1\n",
    "proc/cmdline": "quiet nohz_full=2-3 nohz-full=1-3 -- nohz_full=0\n",
    "proc/swaps": "Filename Type Size\n/dev/secret partition 1024\n",
    **{f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": "powersave\n" for cpu in range(4)},
    **{
        f"{CPU}/cpu{cpu}/cpuidle/state{state}/{name}": text
        for cpu in range(4)
        for state, latency, disable in ((0, "0", "0"), (1, "2", "0"), (2, "170", str(cpu % 2)))
        for name, text in (("latency", f"{latency}\n"), ("disable", f"{disable}\n"))
    },
}


def facts(tree: Tree | None, *asked: str) -> dict[str, Fact]:
    return read_facts(tree, asked or ASKED, ONLINE, EXCLUSIVE)


def test_what_is_there_is_told() -> None:
    found = facts(memory_tree(plain(4) | SETTINGS))
    assert found["/proc/sys/kernel/timer_migration"].texts == {-1: "1\n"}
    assert found[GOVERNOR].texts == {2: "powersave\n", 3: "powersave\n"}
    assert found["parameter nohz_full"].texts == {-1: "1-3"}
    assert found["swap devices"].texts == {-1: "1"}
    assert found["idle latency"].texts == {2: "170", 3: "2"}
    assert found["program irqbalance"].unknown


def test_what_is_not_in_somebody_elses_tree_is_unknown() -> None:
    for one in facts(memory_tree(plain(4))).values():
        assert (one.texts, one.absent) == ({}, False)
        assert one.unknown
    assert all(one.unknown for one in facts(None).values())


def test_a_capture_by_us_tells_what_was_not_there(tmp_path: Path) -> None:
    side = {SIDE_FILE: "node-facts: 1\nirqbalance: absent\n"}
    tree = memory_tree(plain(4) | SETTINGS | side | {"proc/sys/kernel/secret": "x"})
    _, entries = capture_entries(tree)
    assert "secret" not in "".join(f"{entry.path}{entry.text}" for entry in entries)
    path = tmp_path / "node.tar.xz"
    write_new(path, pack(entries, "node", ".tar.xz"), force=False)
    again = open_tree(path)
    assert facts(again) == facts(tree)
    asked = ("parameter skew_tick", "/sys/kernel/mm/ksm/run", "program irqbalance")
    assert all(one.absent for one in facts(again, *asked).values())
    # What no capture keeps is not known to have been missing.
    others = ("parameter panic", "/proc/sys/kernel/panic", "program ntpd")
    assert all(one.unknown for one in facts(again, *others).values())


def test_a_capture_of_somebody_elses_tree_claims_nothing() -> None:
    _, entries = capture_entries(memory_tree(plain(4)))
    assert SIDE_FILE not in {entry.path for entry in entries}
    newer = memory_tree(plain(4) | {SIDE_FILE: "node-facts: 2\n"})
    assert facts(newer, "/sys/kernel/mm/ksm/run")["/sys/kernel/mm/ksm/run"].unknown


def test_swaps_are_counted_and_not_named() -> None:
    assert reduce_swaps("Filename Type\n/dev/sda2 partition\n/swap file\n") == (
        "Filename Type\nswap0\nswap1\n"
    )
    assert reduce_swaps("") == "\n"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({f"{CPU}/cpu3/power/pm_qos_resume_latency_us": "10\n"}, "2"),
        ({f"{CPU}/cpu3/power/pm_qos_resume_latency_us": "0\n"}, "170"),
        ({f"{CPU}/cpu3/power/pm_qos_resume_latency_us": "n/a\n"}, "0"),
        ({f"{CPU}/cpu3/cpuidle/state2/disable": "1\n"}, "2"),
    ],
)
def test_the_idle_states_that_a_cpu_may_enter(changed: dict[str, str], text: str) -> None:
    enabled = {f"{CPU}/cpu{cpu}/cpuidle/state2/disable": "0\n" for cpu in (2, 3)}
    found = facts(memory_tree(plain(4) | SETTINGS | enabled | changed), "idle latency")
    assert found["idle latency"].texts == {2: "170", 3: text}


@pytest.mark.parametrize("text", ["", "soon\n", "-1\n", "9" * 30])
def test_an_idle_state_that_is_none_is_unknown(text: str) -> None:
    odd = {f"{CPU}/cpu3/cpuidle/state1/latency": text}
    found = facts(memory_tree(plain(4) | SETTINGS | odd), "idle latency")
    assert "cpuidle/state1 cannot be read" in found["idle latency"].unknown


def test_some_cpus_that_lack_it_make_it_unknown() -> None:
    less = {path: text for path, text in SETTINGS.items() if "cpu3/cpufreq" not in path}
    side = {SIDE_FILE: "node-facts: 1\n"}
    assert facts(memory_tree(plain(4) | less), GOVERNOR)[GOVERNOR].unknown
    told = facts(memory_tree(plain(4) | less | side), GOVERNOR)[GOVERNOR]
    assert told.unknown == "only CPUs 2 of 2-3 have it"


def test_this_machine_is_read_as_it_is() -> None:
    tree = open_settings(None)
    assert tree is not None
    online = read_tree(tree).online
    asked = ("/proc/sys/kernel/osrelease", "/sys/kernel/no-such-thing", "swap devices")
    found = read_facts(tree, asked, online, None)
    assert found[asked[0]].texts[-1] == Path("/proc/sys/kernel/osrelease").read_text("ascii")
    assert found[asked[1]] == Fact(absent=True)
    swaps = Path("/proc/swaps").read_text("ascii").splitlines()
    assert found[asked[2]].texts == {-1: str(len(swaps) - 1)}


@pytest.mark.parametrize(
    ("files", "kernel"),
    [
        ({}, Kernel()),
        ({"proc/sys/kernel/osrelease": "6.18.3-generic\n"}, Kernel((6, 18))),
        ({"proc/sys/kernel/osrelease": "none\n"}, Kernel()),
        ({"sys/fs/cgroup/cgroup.controllers": "cpu cpuset\n"}, Kernel(None, 2)),
        ({"sys/fs/cgroup/cpuset/": "", "sys/fs/cgroup/unified/": ""}, Kernel(None, 1)),
    ],
)
def test_what_is_known_of_the_kernel_is_in_a_capture(
    files: dict[str, str], kernel: Kernel, tmp_path: Path
) -> None:
    tree = memory_tree(plain(4) | files)
    assert read_kernel(tree) == kernel
    _, entries = capture_entries(tree)
    path = tmp_path / "node.tar"
    write_new(path, pack(entries, "node", ".tar"), force=False)
    assert read_kernel(open_tree(path)) == kernel
    assert read_kernel(None) == Kernel()
