"""What a pod's QoS class is worth on a real kernel: memory, OOM scores, saved quota, I/O.

Each needs something that a usual container has not: cgroup v2, a cgroup of one's own above the
agent's, CAP_SYS_RESOURCE, or a block device that weighs; ``make guest`` has all of them.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from tests.scenes.agent_process import AgentProcess, skip_unless_an_agent_can_run
from tests.scenes.block_device import block_device, number
from tests.scenes.waiting import wait_until

from pinfold.adapters.cgroup.hierarchy import find_hierarchies

MIB: Final = 1 << 20
ROOT: Final = Path("/sys/fs/cgroup")
READ: Final = 64
"""MiB of the device that each of those who keep something has read."""

READER: Final = """
import os, sys, time
device, first, count, ready = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
file = os.open(device, os.O_RDONLY)
for at in range(first, first + count):
    os.pread(file, 1 << 20, at << 20)
open(ready, "w").close()
time.sleep(100000)
"""
"""Reads some MiB of a device once, which stay in memory as long as there is room."""

TAKER: Final = """
import mmap, os, sys, time
most, ready = int(sys.argv[1]), sys.argv[2]
taken = mmap.mmap(-1, most << 20, flags=0x22)
for at in range(0, most << 20, 4096):
    taken[at] = 1
open(ready, "w").close()
time.sleep(100000)
"""
"""Takes some MiB of memory, which nobody can reclaim."""

BURSTS: Final = """
import time
while True:
    until = time.process_time() + 0.035
    while time.process_time() < until:
        pass
    time.sleep(0.7)
"""
"""Wants 35 ms of CPU time at once, and then nothing for 0.7 s."""

RANDOM: Final = """
import mmap, os, random, sys
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
into = mmap.mmap(-1, 4096)
while True:
    os.preadv(file, [into], random.randrange(1 << 18) << 12)
"""
"""Reads pages of a device by chance, past the page cache, one after the other."""


class Node:
    """An agent whose pods have so many bytes of memory together."""

    def __init__(self, folder: Path, memory: int, **config: Any) -> None:
        self.top = ROOT / f"pinfold-test-{secrets.token_hex(4)}-top"
        wished = {"memoryReservationPolicy": "TieredReservation", "memoryThrottlingFactor": 0.5}
        self.agent = AgentProcess(folder, featureGates={"MemoryQoS": True}, **wished | config)
        self.agent.config["pinfold"] |= {
            "cgroupParent": f"/{self.top.name}",
            "ioWeights": {"guaranteed": 500, "burstable": 100, "bestEffort": 10},
        }
        self.top.mkdir()
        (self.top / "memory.max").write_text(str(memory))
        for file in ("memory.min", "memory.low"):
            (self.top / file).write_text("max")

    def run(self, name: str, program: str, *words: object, **amounts: dict[str, str]) -> None:
        """Run a pod of one container; ``amounts`` are its requests and limits."""
        command = [sys.executable, "-I", "-S", "-c", program, *map(str, words)]
        container = {"name": "main", "command": command, "resources": amounts}
        annotations = {"cpu-burst.pinfold.dev/pod": "100%"} if name == "saver" else {}
        told = self.agent.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "uid": f"uid-{name}", "annotations": annotations},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "restartPolicy": "Never",
                    "containers": [container],
                },
            }
        )
        assert told["phase"] != "Rejected", told
        self.agent.pids(name)

    def group(self, name: str) -> Path:
        """The cgroup of a pod."""
        (found,) = self.top.glob(f"*/*/pod*uid-{name}")
        return found

    def numbers(self, name: str, file: str) -> dict[str, int]:
        """A file of a pod's cgroup with a number in each line."""
        lines = (self.group(name) / file).read_text().splitlines()
        return {word: int(count) for word, count in map(str.split, lines)}

    def cached(self, name: str) -> float:
        """MiB of files that a pod has in memory."""
        return self.numbers(name, "memory.stat")["file"] / MIB

    def end(self, name: str) -> None:
        self.agent.client.delete(f"/v1/pods/default/{name}", grace=0)

    def close(self) -> None:
        try:
            if self.agent.process is not None and self.agent.process.poll() is None:
                for pod in self.agent.client.get("/v1/pods")["pods"]:
                    self.end(pod["name"])
                self.agent.stop()
        finally:
            self.agent.clean_up()
            for folder in [*sorted(self.top.glob("**/"), reverse=True)]:
                with suppress(OSError):
                    folder.rmdir()


@contextmanager
def a_node(folder: Path, memory: int, **config: Any) -> Iterator[Node]:
    skip_unless_an_agent_can_run()
    if find_hierarchies().version != 2:
        pytest.skip("needs cgroup v2 (make guest has it)")
    node = Node(folder, memory * MIB, **config)
    try:
        node.agent.start()
        yield node
    finally:
        node.close()


@pytest.fixture
def device() -> Iterator[Path]:
    with block_device() as found:
        yield found


def guaranteed(memory: str) -> dict[str, dict[str, str]]:
    amounts = {"cpu": "1", "memory": memory}
    return {"requests": amounts, "limits": amounts}


@pytest.mark.parametrize("policy", ["TieredReservation", "None"])
def test_who_is_protected_keeps_pages_that_a_neighbour_loses(
    tmp_path: Path, device: Path, policy: str
) -> None:
    """Three have read as much; then somebody else needs the memory, and more than there is."""
    with a_node(tmp_path, 320, memoryReservationPolicy=policy) as node:
        amounts = {
            "kept": guaranteed("96Mi"),
            "last": {"requests": {"memory": "96Mi"}},
            "plain": {},
        }
        for place, (name, asked) in enumerate(amounts.items()):
            ready = tmp_path / name
            node.run(name, READER, device, place * READ, READ, ready, **asked)
            wait_until(ready.exists, 60)
        assert all(node.cached(name) >= READ for name in amounts)
        done = tmp_path / "stream"
        node.run("stream", READER, device, 256, 768, done)
        wait_until(done.exists, 120)
        left = {name: node.cached(name) for name in amounts}
        print(left)  # noqa: T201 - for whoever runs it
        assert left["plain"] < READ / 2
        if policy == "None":
            assert left["kept"] < READ / 2
            assert left["last"] < READ / 2
            return
        assert left["kept"] >= READ
        assert left["last"] >= READ

        # So much that not even everything else is enough: what is only low goes, what is min stays.
        node.end("stream")
        ready = tmp_path / "taken"
        node.run("taker", TAKER, 195, ready)
        wait_until(ready.exists, 120)
        left = {name: node.cached(name) for name in amounts}
        print(left)  # noqa: T201 - for whoever runs it
        assert left["last"] < READ - 8
        assert left["kept"] >= READ
        assert node.numbers("last", "memory.events")["low"] > 0
        # Whoever reclaims has to be above both.
        assert "oom_kill 0" in (node.top / "memory.events").read_text()


def test_who_is_above_memory_high_is_slowed_down_and_not_ended(
    tmp_path: Path, device: Path
) -> None:
    with a_node(tmp_path, 512) as node:
        done = tmp_path / "done"
        amounts = {"requests": {"memory": "16Mi"}, "limits": {"memory": "128Mi"}}
        node.run("slow", READER, device, 0, 256, done, **amounts)
        main = node.group("slow") / "main"
        high = int((main / "memory.high").read_text())
        assert high == (16 + 56) * MIB
        wait_until(done.exists, 60)
        events = dict(map(str.split, (main / "memory.events").read_text().splitlines()))
        assert int(events["high"]) > 0
        assert (events["max"], events["oom_kill"]) == ("0", "0")
        assert int((main / "memory.current").read_text()) <= high


def test_the_kernel_ends_best_effort_work_first_however_little_it_has(tmp_path: Path) -> None:
    with a_node(tmp_path, 256) as node:
        ready = tmp_path / "has much"
        node.run("main", TAKER, 160, ready, **guaranteed("200Mi"))
        wait_until(ready.exists, 60)
        pid = node.agent.pids("main")["main"]
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "-997"
        node.run("batch", TAKER, 140, tmp_path / "never")
        wait_until(lambda: "oom_kill 1" in (node.top / "memory.events").read_text(), 60)
        wait_until(lambda: node.agent.pod("batch")["phase"] == "Failed", 60)
        assert node.agent.pids("main")["main"] == pid
        assert Path(f"/proc/{pid}").exists()
        assert not (tmp_path / "never").exists()


def test_who_has_saved_quota_is_not_stopped_in_the_middle(tmp_path: Path) -> None:
    with a_node(tmp_path, 512) as node:
        asked = {"requests": {"cpu": "200m"}, "limits": {"cpu": "200m"}}
        for name in ("saver", "plain"):
            node.run(name, BURSTS, **asked)
        main = node.group("saver") / "main"
        assert (main / "cpu.max").read_text().split() == ["20000", "100000"]
        assert (main / "cpu.max.burst").read_text().strip() == "20000"

        def stat(name: str) -> dict[str, int]:
            return node.numbers(name, "main/cpu.stat")

        # Starting takes more than that at once.
        wait_until(lambda: stat("saver")["nr_bursts"] > 2, 60)
        before = {name: stat(name) for name in ("saver", "plain")}
        wait_until(
            lambda: stat("plain")["nr_throttled"] >= before["plain"]["nr_throttled"] + 20, 60
        )
        now = {name: stat(name) for name in ("saver", "plain")}
        stopped = {name: now[name]["nr_throttled"] - before[name]["nr_throttled"] for name in now}
        print(stopped)  # noqa: T201 - for whoever runs it
        assert now["plain"]["nr_bursts"] == 0
        assert now["saver"]["nr_bursts"] > before["saver"]["nr_bursts"] + 10
        assert stopped["saver"] <= stopped["plain"] / 2


def test_io_is_weighed_by_class_also_between_owners_and_others(
    tmp_path: Path, device: Path
) -> None:
    """The device does 200 reads in a second, and everybody wants more."""
    name = number(device)
    with a_node(tmp_path, 512) as node, weighed(name):
        pods = {"owner": guaranteed("64Mi"), "middle": {"requests": {"cpu": "100m"}}, "batch": {}}
        for pod, asked in pods.items():
            node.run(pod, RANDOM, device, **asked)

        def reads() -> dict[str, int]:
            return {pod: _reads(node.group(pod) / "io.stat", name) for pod in pods}

        wait_until(lambda: all(reads().values()), 60)
        before = reads()
        wait_until(lambda: reads()["owner"] > before["owner"] + 1000, 120)
        done = {pod: count - before[pod] for pod, count in reads().items()}
        print(done)  # noqa: T201 - for whoever runs it
        # 500, 100 and 10 are their weights.
        assert 2.5 < done["owner"] / done["middle"] < 10
        assert done["middle"] / done["batch"] > 3


@contextmanager
def weighed(device: str) -> Iterator[None]:
    """The kernel weighs the I/O of a device, of which it is told what it can do."""
    qos, model = ROOT / "io.cost.qos", ROOT / "io.cost.model"
    can = " ".join(f"{way}bps={100 * MIB} {way}seqiops=200 {way}randiops=200" for way in ("r", "w"))
    model.write_text(f"{device} ctrl=user model=linear {can}")
    qos.write_text(f"{device} enable=1 ctrl=user min=100.00 max=100.00")
    try:
        yield
    finally:
        qos.write_text(f"{device} enable=0")


def _reads(stat: Path, device: str) -> int:
    for line in stat.read_text().splitlines():
        name, *words = line.split()
        if name == device:
            return int(dict(word.split("=") for word in words)["rios"])
    return 0
