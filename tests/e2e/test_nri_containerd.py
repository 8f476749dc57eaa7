"""The NRI plugin with a real containerd: what each side does, and how long it takes."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from pinfold.adapters.cri import cri_pb2 as cri
from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerAdjustment, ContainerState, RefusedError, Resources
from tests.scenes.containerd_node import ContainerdNode, containerd_node
from tests.scenes.nri_peer import (
    Recorder,
    cpus,
    running_plugin,
)
from tests.scenes.waiting import until

REQUEST_TIMEOUT = 1.0
MANY = 20
PARENT = f"/pinfold-nri-{os.getpid()}"
ONE, OTHER = (str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2])


@pytest.fixture(scope="module")
def containerd() -> Iterator[ContainerdNode]:
    """As the shared one, with a shorter time-out of NRI."""
    with containerd_node(nri_timeout=f"{REQUEST_TIMEOUT:g}s") as node:
        yield node


class Kubelet:
    """The few calls of a kubelet that the tests need."""

    def __init__(self, channel: grpc.aio.Channel, image: str) -> None:
        self._channel = channel
        self._image = image
        self._pods: dict[str, cri.PodSandboxConfig] = {}

    async def call(self, method: str, request: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=60)

    async def run_pod(self, name: str) -> str:
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=f"uid-{name}", namespace="ns"),
            labels={"app": name},
            annotations={"cpu.pinfold.dev/pod": "x"},
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=PARENT,
                security_context=cri.LinuxSandboxSecurityContext(
                    namespace_options=cri.NamespaceOption(network=cri.NODE)
                ),
            ),
        )
        request = cri.RunPodSandboxRequest(config=config)
        answer = await self.call("RunPodSandbox", request, cri.RunPodSandboxResponse)
        self._pods[answer.pod_sandbox_id] = config
        return str(answer.pod_sandbox_id)

    async def create(self, pod: str, name: str, **resources: Any) -> str:
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=self._image),
            command=["sleep", "1000000"],
            annotations={"note": name},
            linux=cri.LinuxContainerConfig(
                resources=cri.LinuxContainerResources(**resources),
                security_context=cri.LinuxContainerSecurityContext(
                    namespace_options=cri.NamespaceOption(network=cri.NODE)
                ),
            ),
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod, config=config, sandbox_config=self._pods[pod]
        )
        answer = await self.call("CreateContainer", request, cri.CreateContainerResponse)
        return str(answer.container_id)

    async def start(self, container: str) -> None:
        request = cri.StartContainerRequest(container_id=container)
        await self.call("StartContainer", request, cri.StartContainerResponse)

    async def run(self, pod: str, name: str, **resources: Any) -> str:
        container = await self.create(pod, name, **resources)
        await self.start(container)
        return container

    async def resize(self, container: str, **resources: Any) -> None:
        request = cri.UpdateContainerResourcesRequest(
            container_id=container, linux=cri.LinuxContainerResources(**resources)
        )
        await self.call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    async def stop(self, container: str) -> None:
        request = cri.StopContainerRequest(container_id=container, timeout=0)
        await self.call("StopContainer", request, cri.StopContainerResponse)

    async def remove(self, container: str) -> None:
        request = cri.RemoveContainerRequest(container_id=container)
        await self.call("RemoveContainer", request, cri.RemoveContainerResponse)

    async def remove_pod(self, pod: str) -> None:
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=pod)
        await self.call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=pod)
        await self.call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse)
        del self._pods[pod]

    async def remove_everything(self) -> None:
        for pod in list(self._pods):
            await self.remove_pod(pod)


@asynccontextmanager
async def kubelet(node: ContainerdNode) -> AsyncIterator[Kubelet]:
    async with grpc.aio.insecure_channel(f"unix://{node.address}") as channel:
        it = Kubelet(channel, node.image)
        try:
            yield it
        finally:
            await it.remove_everything()
            # containerd leaves the pods' parent behind, in every hierarchy.
            for group in Path("/sys/fs/cgroup").glob(f"**{PARENT}"):
                with suppress(OSError):
                    group.rmdir()


def settings(node: ContainerdNode, **more: Any) -> PluginSettings:
    return PluginSettings(socket=node.nri, patience=0.2, **more)


@asynccontextmanager
async def scene(
    node: ContainerdNode, events: Recorder, reports: list[str]
) -> AsyncIterator[tuple[Kubelet, NriPlugin]]:
    """A kubelet, and a plugin that is connected."""
    async with kubelet(node) as it, running_plugin(events, settings(node), reports) as plugin:
        await until(lambda: plugin.connected)
        yield it, plugin


def allowed(node: ContainerdNode, container: str) -> str:
    """The CPUs that the kernel lets a container's main process use."""
    pid = next(
        line.split()[1]
        for line in node.ctr("tasks", "ls").splitlines()
        if line.startswith(container)
    )
    status = Path(f"/proc/{pid}/status").read_text()
    return status.split("Cpus_allowed_list:")[1].split()[0]


def test_a_container_from_its_creation_to_its_end(containerd: ContainerdNode) -> None:
    async def scenario() -> None:
        events, reports = Recorder(), list[str]()
        async with scene(containerd, events, reports) as (it, plugin):
            assert plugin.runtime.startswith("containerd 1.7")
            pod = await it.run_pod("p")
            sandbox = events.pods["p"]
            assert (sandbox.id, sandbox.uid, sandbox.namespace) == (pod, "uid-p", "ns")
            assert sandbox.annotations["cpu.pinfold.dev/pod"] == "x"
            assert sandbox.cgroup_parent == PARENT
            other = await it.run(pod, "other")

            events.adjustment = ContainerAdjustment(Resources(cpus=OTHER), {"A": "b"}, {"x": "y"})
            assert await plugin.update([cpus(other, ONE)]) == []
            wanted = {"cpu_shares": 512, "cpu_quota": 20000, "cpu_period": 100000}
            container = await it.create(pod, "c", memory_limit_in_bytes=64 << 20, **wanted)
            # The others are off before the new one starts, and it starts where it belongs.
            assert allowed(containerd, other) == ONE
            await it.start(container)
            assert allowed(containerd, container) == OTHER
            seen = events.seen["c"]
            assert (seen.id, seen.sandbox_id, seen.state) == (
                container,
                pod,
                ContainerState.RUNNING,
            )
            assert seen.resources == Resources(512, 20000, 100000, cpus=OTHER, memory=64 << 20)
            assert seen.annotations["note"] == "c"
            assert seen.annotations["x"] == "y"
            assert seen.cgroups_path == f"{sandbox.cgroup_parent}/{container}"
            assert seen.pid

            assert await plugin.update([cpus(container, ONE), cpus(other, OTHER)]) == []
            assert allowed(containerd, container) == ONE
            assert allowed(containerd, other) == OTHER
            await it.resize(container, cpu_shares=1024)
            assert events.wanted[-1].cpu_shares == 1024
            await it.stop(container)
            await it.remove(container)
            await it.remove_pod(pod)
            assert [method for method, name in events.calls if name in {"c", "p"}] == [
                "run_pod_sandbox",
                "create_container",
                "post_create_container",
                "start_container",
                "post_start_container",
                "update_container",
                "post_update_container",
                "stop_container",
                "remove_container",
                "stop_pod_sandbox",
                "remove_pod_sandbox",
            ]
        assert reports == []

    asyncio.run(scenario())


def test_updates_that_cannot_be_made(containerd: ContainerdNode) -> None:
    async def scenario() -> None:
        async with scene(containerd, Recorder(), []) as (it, plugin):
            container = await it.run(await it.run_pod("p"), "c")
            assert await plugin.update([cpus("no-such-container", ONE)]) == []
            with pytest.raises(RuntimeFailedError, match=r"UpdateContainers: .* failed .code 2"):
                await plugin.update([cpus(container, "4095")])
            assert await plugin.update([cpus(container, "4095", ignore_failure=True)]) == []
            assert plugin.connected
            # Longer than one frame of a Go runtime's reader.
            many = [cpus(f"no-such-container-{i:060}", ONE) for i in range(1000)]
            assert await plugin.update([*many, cpus(container, OTHER)]) == []
            assert allowed(containerd, container) == OTHER

    asyncio.run(scenario())


def test_refusing_and_failing_keep_a_container_from_running(containerd: ContainerdNode) -> None:
    async def refuse(_name: str) -> None:
        raise RefusedError("SMTAlignmentError: 3 CPUs is not a multiple of 2")

    async def fail(_name: str) -> None:
        raise OSError("disk full")

    async def scenario() -> None:
        events, reports = Recorder(), list[str]()
        async with scene(containerd, events, reports) as (it, plugin):
            pod = await it.run_pod("p")
            events.on = {"create_container": refuse}
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await it.create(pod, "refused")
            assert refused.value.details() == (
                "failed to create containerd container: failed to get NRI adjustment for container:"
                " rpc error: code = Unknown desc = SMTAlignmentError: 3 CPUs is not a multiple of 2"
            )
            assert reports == []
            events.on = {"create_container": fail}
            with pytest.raises(grpc.aio.AioRpcError, match="pinfold failed: OSError: disk full"):
                await it.create(pod, "failed")
            events.on = {"start_container": fail}
            container = await it.create(pod, "unstarted")
            with pytest.raises(grpc.aio.AioRpcError, match="pinfold failed: OSError: disk full"):
                await it.start(container)
            # containerd goes on after the others; what failed is reported.
            events.on = dict.fromkeys(
                ["post_create_container", "post_start_container", "stop_container"], fail
            )
            container = await it.run(pod, "c")
            await it.stop(container)
            assert plugin.connected
            assert reports[2:] == [
                f"{method} of ns/p/c failed: OSError: disk full"
                for method in ("PostCreateContainer", "PostStartContainer", "StopContainer")
            ]
            created = plugin.counters.methods["CreateContainer"]
            assert (created.requests, created.refused, created.failed) == (4, 1, 1)

    asyncio.run(scenario())


def test_a_slow_answer_is_lost_and_comes_to_light_by_synchronize(
    containerd: ContainerdNode,
) -> None:
    async def slow(_name: str) -> None:
        await asyncio.sleep(REQUEST_TIMEOUT + 0.3)

    async def scenario() -> None:
        events, reports = Recorder(), list[str]()
        async with scene(containerd, events, reports) as (it, plugin):
            pod = await it.run_pod("p")
            events.on = {"create_container": slow}
            events.adjustment = ContainerAdjustment(Resources(cpus=OTHER))
            container = await it.run(pod, "c")
            assert allowed(containerd, container) != OTHER
            del events.seen["c"]
            await until(lambda: plugin.counters.reconnects == 1)
            assert events.seen["c"].id == container
            assert "CreateContainer of ns/p/c: answered after " in reports[0]
            assert "gone on without the answer" in reports[0]
            assert plugin.counters.methods["CreateContainer"].late == 1

        async with running_plugin(events, settings(containerd), reports) as plugin:
            await until(lambda: plugin.connected)
            assert plugin.counters.registrations == 1

    asyncio.run(scenario())


def test_a_runtime_that_did_not_wait_for_synchronize_is_registered_with_again(
    containerd: ContainerdNode,
) -> None:
    """It keeps such a connection, and tells nothing over it."""

    async def scenario() -> None:
        events, reports = Recorder(), list[str]()

        async def slow(_name: str) -> None:
            events.on = {}
            await asyncio.sleep(REQUEST_TIMEOUT + 0.3)

        events.on = {"synchronize": slow}
        async with scene(containerd, events, reports) as (it, plugin):
            assert plugin.counters.methods["Synchronize"].late == 1
            assert events.methods == ["synchronize", "synchronize"]
            await it.run(await it.run_pod("p"), "c")
            assert "post_start_container" in events.methods
        assert "did not wait for the answer to Synchronize" in reports[1]

    asyncio.run(scenario())


def test_updates_and_questions_at_the_same_time(containerd: ContainerdNode) -> None:
    async def scenario() -> None:
        events, reports = Recorder(), list[str]()
        async with scene(containerd, events, reports) as (it, plugin):
            pod = await it.run_pod("p")
            first = await it.run(pod, "first")

            async def within(_name: str) -> None:
                assert await plugin.update([cpus(first, ONE)]) == ()

            events.on = {"create_container": within}
            began = time.monotonic()
            await it.create(pod, "second")
            assert time.monotonic() - began < REQUEST_TIMEOUT
            await until(lambda: allowed(containerd, first) == ONE)

            # Sent before the question came, or while it is open: no dead-lock, and the newer wins.
            asked, going_on = asyncio.Event(), asyncio.Event()

            async def hold(_name: str) -> None:
                asked.set()
                await going_on.wait()

            events.on = {"create_container": hold}
            creating = asyncio.create_task(it.create(pod, "third"))
            await asked.wait()
            with pytest.raises(RuntimeFailedError, match="nothing was changed"):
                await plugin.update([cpus(first, OTHER)])
            going_on.set()
            await creating
            assert allowed(containerd, first) == ONE
            events.on = {}

            # Many of both.
            async def change(number: int) -> None:
                await plugin.update([cpus(first, (ONE, OTHER)[number % 2])])

            await asyncio.gather(
                *(it.create(pod, f"c{number}") for number in range(8)),
                *(change(number) for number in range(8)),
            )
            assert plugin.counters.reconnects == 0
            assert reports == []

    asyncio.run(scenario())


def test_what_ran_before_is_told_and_updated(containerd: ContainerdNode) -> None:
    async def scenario() -> None:
        async with kubelet(containerd) as it:
            pod = await it.run_pod("p")
            container = await it.run(pod, "c")
            events = Recorder()
            async with running_plugin(events, settings(containerd), []) as plugin:
                await until(lambda: plugin.connected)
                assert events.calls == [("synchronize", "1 1")]
                assert events.seen["c"].state is ContainerState.RUNNING
                assert events.pods["p"].id == pod
                assert await plugin.update([cpus(container, OTHER)]) == []
                await until(lambda: allowed(containerd, container) == OTHER)
                # containerd tells two plugins of the same name and index apart by nothing.
                async with running_plugin(Recorder(), settings(containerd), []) as second:
                    await until(lambda: second.connected)
                    assert plugin.connected

    asyncio.run(scenario())


def test_a_runtime_that_is_killed_and_comes_back(fresh_containerd: ContainerdNode) -> None:
    async def scenario() -> None:
        events, reports = Recorder(), list[str]()
        async with running_plugin(events, settings(fresh_containerd), reports) as plugin:
            async with kubelet(fresh_containerd) as it:
                await until(lambda: plugin.connected)
                container = await it.run(await it.run_pod("p"), "c")
                await asyncio.to_thread(fresh_containerd.kill)
                await until(lambda: not plugin.connected)
                with pytest.raises(RuntimeFailedError, match="no runtime is connected"):
                    await plugin.update([cpus(container, ONE)])
                await asyncio.to_thread(fresh_containerd.start)
                await until(lambda: plugin.connected)
                assert events.calls[-1] == ("synchronize", "1 1")
                assert events.seen["c"].id == container
                assert await plugin.update([cpus(container, ONE)]) == []
                assert allowed(fresh_containerd, container) == ONE
            await asyncio.to_thread(fresh_containerd.stop)
            await until(lambda: not plugin.connected)
        assert plugin.counters.disconnects == 2
        assert any("the runtime closed the connection" in report for report in reports)

    asyncio.run(scenario())


def test_latencies(containerd: ContainerdNode, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> dict[str, float]:
        events, figures = Recorder(), dict[str, float]()
        async with kubelet(containerd) as it:
            pod = await it.run_pod("p")
            without = await timed(lambda n: it.create(pod, f"without{n}"), 20)
            began = time.perf_counter()
            async with running_plugin(events, settings(containerd), []) as plugin:
                await until(lambda: plugin.connected)
                figures["register + configure + synchronize"] = time.perf_counter() - began
                with_it = await timed(lambda n: it.create(pod, f"with{n}"), 20)
                figures["CreateContainer without the plugin"] = statistics.median(without)
                figures["CreateContainer with the plugin"] = statistics.median(with_it)
                count = plugin.counters.methods["CreateContainer"]
                figures["of it from request to answer"] = count.seconds / count.requests
                ids = [await it.run(pod, f"running{n}") for n in range(MANY)]

                def move(n: int, several: list[str]) -> Awaitable[object]:
                    return plugin.update([cpus(each, (ONE, OTHER)[n % 2]) for each in several])

                one = await timed(lambda n: move(n, ids[:1]), 20)
                figures["update of 1"] = statistics.median(one)
                figures[f"update of {MANY}"] = min(await timed(lambda n: move(n, ids), 3))
        return figures

    figures = asyncio.run(scenario())
    with capsys.disabled():
        for what, seconds in figures.items():
            sys.stdout.write(f"  {what}: {seconds * 1000:.2f} ms\n")
    assert figures["of it from request to answer"] < 0.05


async def timed(call: Callable[[int], Awaitable[object]], times: int) -> list[float]:
    """How long each took, in seconds."""
    seconds = []
    for number in range(times):
        began = time.perf_counter()
        await call(number)
        seconds.append(time.perf_counter() - began)
    return seconds
