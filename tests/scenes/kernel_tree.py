"""A directory that looks like the root of a machine: ``proc`` and ``sys`` of a kubelet's node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pinfold.core.values.cpuset import CPUSet

V2 = "sys/fs/cgroup"


UID = "8b0c4a8e-3b1f-4a55-9a53-0d2f6d5c1e77"
SLICE = "kubepods.slice/kubepods-pod8b0c4a8e_3b1f_4a55_9a53_0d2f6d5c1e77.slice"
ID_A, ID_B, ID_P = "a" * 64, "b" * 64, "f" * 64


@dataclass
class KernelTree:
    """A directory that looks like the root of a machine."""

    root: Path

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def machine(self, online: str = "0-7") -> None:
        self.write("sys/devices/system/cpu/online", f"{online}\n")
        self.write("sys/devices/system/cpu/isolated", "\n")
        self.write("sys/devices/system/cpu/nohz_full", "  (null)\n")
        for cpu in CPUSet.parse(online):
            pair = f"{cpu & ~1}-{cpu | 1}\n"
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", pair)
        self.write("sys/devices/system/node/node0/cpulist", "0-3\n")
        self.write("sys/devices/system/node/node1/cpulist", "4-7\n")
        self.write("proc/irq/default_smp_affinity", "03\n")
        self.write("sys/devices/virtual/workqueue/cpumask", "03\n")
        self.task(2, "/", "0-1,4-7", 0, comm="kthreadd", flags=0x00200000)

    def unified(self) -> None:
        self.write(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
        self.write(f"{V2}/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n")
        self.write(f"{V2}/cpuset.cpus.effective", "0-7\n")
        self.write(f"{V2}/cpuset.mems.effective", "0-1\n")

    def group(
        self, path: str, cpus: str, effective: str, *, quota: str = "max", mems: str = "0-1"
    ) -> None:
        """A cgroup v2 with the controllers cpu and cpuset, those above it included."""
        folder = f"{V2}/{path}"
        self.write(f"{folder}/cpuset.cpus", f"{cpus}\n")
        self.write(f"{folder}/cpuset.cpus.effective", f"{effective}\n")
        self.write(f"{folder}/cpuset.mems", "\n")
        self.write(f"{folder}/cpuset.mems.effective", f"{mems}\n")
        self.write(f"{folder}/cpuset.cpus.partition", "member\n")
        self.write(f"{folder}/cpu.max", f"{quota} 100000\n")
        parent = path.rpartition("/")[0]
        if parent and not (self.root / V2 / parent / "cpuset.cpus").exists():
            self.group(parent, "", "0-7")

    def task(
        self,
        pid: int,
        cgroup: str,
        allowed: str,
        cpu: int,
        *,
        comm: str = "work",
        flags: int = 4194560,
        controller: str = "",
    ) -> None:
        folder = f"proc/{pid}/task/{pid}"
        after = AFTER_NAME.format(start=pid, cpu=cpu).replace(" 41 ", " 1 ", 1)
        self.write(f"{folder}/stat", f"{pid} ({comm})" + after.replace("4194560", str(flags)))
        self.write(f"{folder}/status", f"Name:\t{comm}\nCpus_allowed_list:\t{allowed}\n")
        number = 3 if controller else 0
        self.write(f"{folder}/cgroup", f"{number}:{controller}:{cgroup}\n")

    def interrupt(self, number: int, affinity: str, effective: str, action: str) -> None:
        self.write(f"proc/irq/{number}/smp_affinity_list", f"{affinity}\n")
        self.write(f"proc/irq/{number}/effective_affinity_list", f"{effective}\n")
        if action:
            self.write(f"sys/kernel/irq/{number}/actions", f"{action}\n")


def kubelet_node(root: Path) -> KernelTree:
    """A node of a kubelet with the systemd driver, containerd and one pinned container."""
    tree = KernelTree(root)
    tree.machine()
    tree.unified()
    (root / "run/systemd/system").mkdir(parents=True)
    tree.group(f"{SLICE}/cri-containerd-{ID_A}.scope", "2-3", "2-3", mems="0")
    tree.group(f"{SLICE}/cri-containerd-{ID_B}.scope", "0-1,4-7", "0-1,4-7")
    tree.group(f"{SLICE}/cri-containerd-{ID_P}.scope", "", "0-7")
    tree.task(1, "/init.scope", "0-1,4-7", 0, comm="systemd")
    tree.task(500, f"/{SLICE}/cri-containerd-{ID_A}.scope", "2-3", 2, comm="app")
    tree.task(501, f"/{SLICE}/cri-containerd-{ID_B}.scope", "0-1,4-7", 5, comm="log")
    tree.task(502, f"/{SLICE}/cri-containerd-{ID_P}.scope", "0-1,4-7", 1, comm="pause")
    tree.interrupt(24, "0-1", "0", "eth0")
    return tree


AFTER_NAME = (
    " S 41 7 8 0 -1 4194560 99 0 0 0 1 2 0 0 20 0 6 0 {start} 2674688 180 18446744073709551615 "
    "1 1 0 0 0 0 0 0 0 0 0 0 17 {cpu} 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
