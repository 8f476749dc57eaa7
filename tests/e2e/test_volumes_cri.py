"""Volumes of huge pages and memory in the containers of a real containerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.linux.mounting import mounts_below
from tests.scenes.agent_process import (
    AgentProcess,
    skip_unless_an_agent_can_run,
)
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.hugepages_scene import more_pages
from tests.scenes.waiting import eventually

HUGETLBFS, TMPFS = "958458f6", "1021994"
"""The kernel's magic numbers of file systems, as stat prints them."""


@pytest.fixture
def agent(
    fresh_containerd: ContainerdNode, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    agent.config["pinfold"] |= {
        "runtime": "cri",
        "runtimeEndpoint": f"unix://{fresh_containerd.address}",
    }
    with more_pages(tmp_path_factory, 4):
        try:
            agent.start()
            yield agent
            for pod in agent.client.get("/v1/pods")["pods"]:
                agent.client.delete(f"/v1/pods/{pod['namespace']}/{pod['name']}?grace=0")
            eventually(lambda: fresh_containerd.ctr("containers", "ls", "-q").split(), [])
            eventually(lambda: list(Path("/sys/fs/cgroup").glob(f"*/{agent.name}/*/")), [])
        finally:
            agent.stop()


def test_huge_pages_in_a_container(agent: AgentProcess, fresh_containerd: ContainerdNode) -> None:
    out = agent.folder / "out"
    out.mkdir()
    script = (
        'stat -f -c %t "$PINFOLD_VOLUME_HUGE" "$PINFOLD_VOLUME_FAST" > /out/new; '
        "mv /out/new /out/kinds; sleep 1000000 & wait"
    )
    amounts = {"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"}
    media: dict[str, dict[str, Any]] = {
        "huge": {"medium": "HugePages-2Mi"},
        "fast": {"medium": "Memory", "sizeLimit": "1Mi"},
    }
    agent.apply(
        {
            "metadata": {"name": "owner", "uid": "owner-uid"},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "main",
                        "image": fresh_containerd.image,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", script],
                        "resources": {"limits": amounts, "requests": amounts},
                        "volumeMounts": [
                            {"name": name, "mountPath": f"/{name}"} for name in (*media, "out")
                        ],
                    }
                ],
                "volumes": [
                    *({"name": name, "emptyDir": source} for name, source in media.items()),
                    {"name": "out", "hostPath": {"path": str(out)}},
                ],
            },
        }
    )
    eventually((out / "kinds").exists, expected=True)
    assert (out / "kinds").read_text().split() == [HUGETLBFS, TMPFS], agent.log()
    pods = agent.state / "pods"
    assert sorted(found.kind for found in mounts_below(pods)) == ["hugetlbfs", "tmpfs"]
    assert agent.run("delete", "pod/owner").returncode == 0
    eventually((pods / "owner-uid").exists, expected=False)
    assert mounts_below(pods) == []
