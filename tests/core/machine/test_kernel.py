"""What a kernel is known to have, of what something needs."""

from __future__ import annotations

import pytest

from pinfold.core.machine.kernel import Kernel, has_all, lacks


@pytest.mark.parametrize(
    ("needs", "kernel", "reason", "all_there"),
    [
        ("cgroup v2", Kernel(), "", False),
        ("cgroup v2", Kernel(cgroups=2), "", True),
        ("cgroup v2", Kernel(cgroups=1), "the kernel's cpusets are on cgroup v1", False),
        ("cgroup v2 and Linux 6.7", Kernel((6, 7), 2), "", True),
        ("cgroup v2 and Linux 6.7", Kernel((6, 18), None), "", False),
        ("cgroup v2 and Linux 6.7", Kernel((6, 6), 2), "the kernel is older than 6.7", False),
        ("Linux 5.15", Kernel((5, 2), 1), "the kernel is older than 5.15", False),
        ("resctrl", Kernel((6, 18), 2), "", False),
        ("resctrl, on Linux 5.14", Kernel((6, 18), 2), "", False),
        ("resctrl, on Linux 5.14", Kernel((4, 19), 2), "the kernel is older than 5.14", False),
    ],
)
def test_what_a_kernel_lacks(needs: str, kernel: Kernel, reason: str, all_there: bool) -> None:
    assert lacks(needs, kernel) == reason
    assert has_all(needs, kernel) is all_there
