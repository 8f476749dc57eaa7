"""What the kernel writes, and what no kernel would: the parsers of single files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.procfs.cgroups import Hierarchy, mounted_hierarchies, parse_cpu_max
from pinfold.adapters.procfs.files import KernelFiles, parse_list
from pinfold.adapters.procfs.tasks import parse_allowed
from pinfold.core.values.cpuset import CPUSet


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_nothing_but_a_value_error_comes_out_of_a_parser(text: str) -> None:
    for parse in (parse_allowed, parse_cpu_max, parse_list):
        try:
            parse(text)
        except ValueError:
            continue
    mounted_hierarchies(KernelFiles("/nonexistent"), text)


def test_allowed_cpus() -> None:
    status = "Name:\tx\\nCpus_allowed_list:\t0\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3,8\n"
    assert parse_allowed(status) == CPUSet.parse("0-3,8")
    with pytest.raises(ValueError, match="no Cpus_allowed_list"):
        parse_allowed("Name:\tx\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [("max 100000\n", (None, 100000)), ("50000 100000\n", (50000, 100000))],
)
def test_cpu_max(text: str, value: tuple[int | None, int]) -> None:
    assert parse_cpu_max(text) == value


@pytest.mark.parametrize("text", ["", "max", "1 2 3", "a 1", "1 max", "9" * 40 + " 1"])
def test_what_is_no_cpu_max(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not QUOTA PERIOD|is no number"):
        parse_cpu_max(text)


def test_the_empty_set_of_sysfs() -> None:
    assert parse_list("(null)\n") == parse_list("\n") == CPUSet()


def test_mounts_of_a_hybrid_machine() -> None:
    mounts = (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "33 31 0:32 /docker/x /part rw - cgroup cgroup rw,cpuset\n"
        "34 31 0:31 / /sys/fs/cgroup/cpu\\040set rw,relatime - cgroup cgroup rw,cpuset\n"
        "32 31 0:29 /docker/x /sys/fs/cgroup/cpu rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "broken line\n"
    )
    found = mounted_hierarchies(KernelFiles("/nonexistent"), mounts)
    assert found == {
        "cpuset": Hierarchy(1, "/sys/fs/cgroup/cpu set", "cpuset"),
        "cpu": Hierarchy(1, "/sys/fs/cgroup/cpu", "cpu", "/docker/x"),
    }
    assert found["cpu"].place("/docker/x/a") == "/a"
    assert found["cpu"].place("/docker/x") == "/"
    assert found["cpu"].place("/docker/xy") == "/docker/xy"
    assert found["cpuset"].place("/a") == "/a"
