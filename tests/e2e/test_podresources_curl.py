"""podresources of a running agent, asked by curl: an HTTP/2 of neither ours nor grpcio.

The answers are compared with what the kernel lets the containers' processes run on.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import AgentProcess, manifest, skip_unless_an_agent_can_run
from tests.scenes.podresources_world import ask
from tests.scenes.waiting import wait_until

SLEEP = ("sleep", "600")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    if shutil.which("curl") is None or b"HTTP2" not in subprocess.check_output(["curl", "-V"]):
        pytest.skip("needs a curl that speaks HTTP/2")
    process = AgentProcess(tmp_path)
    process.config["pinfold"]["podResourcesSocket"] = str(tmp_path / "pr" / "p.sock")
    try:
        process.start()
        yield process
    finally:
        process.clean_up()


def listed(socket: Path) -> dict[str, dict[str, CPUSet]]:
    answer = ask(socket, "List")
    assert (answer.status, answer.message) == (0, "")
    return {
        pod.name: {c.name: CPUSet(c.cpu_ids) for c in pod.containers}
        for pod in v1.ListPodResourcesResponse.FromString(answer.body).pod_resources
    }


def allowed(pid: int) -> CPUSet:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Cpus_allowed_list:"))
    return CPUSet.parse(line.split(":")[1].strip())


def test_what_it_tells_is_what_the_kernel_has(agent: AgentProcess) -> None:
    socket = agent.folder / "pr" / "p.sock"
    wait_until(socket.exists)
    assert listed(socket) == {}
    agent.apply(manifest("own", ("main", SLEEP, "1")))
    agent.apply(manifest("shared", ("main", SLEEP, "")))
    own, shared = agent.pids("own")["main"], agent.pids("shared")["main"]
    found = listed(socket)
    assert found == {"own": {"main": allowed(own)}, "shared": {"main": CPUSet()}}
    assert len(allowed(own)) == 1
    assert not allowed(own) & allowed(shared)

    answer = ask(socket, "GetAllocatableResources")
    allocatable = v1.AllocatableResourcesResponse.FromString(answer.body)
    status = agent.client.get("/v1/status")
    assert CPUSet(allocatable.cpu_ids) == CPUSet.parse(status["allocatable"]) - CPUSet.parse(
        status["offline"]
    )

    request = v1.GetPodResourcesRequest(pod_name="gone", pod_namespace="prod")
    answer = ask(socket, "Get", request.SerializeToString())
    assert (answer.status, answer.message) == (2, "pod gone in namespace prod not found")

    # The agent is killed, and its file stays; the next one takes the place, and tells the same.
    agent.kill()
    assert socket.exists()
    agent.start()
    wait_until(lambda: listed(socket) == found)
    agent.client.delete("/v1/pods/default/own", grace=0)
    assert set(listed(socket)) == {"shared"}
    agent.stop()
    assert not socket.exists()
