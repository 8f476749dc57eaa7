"""Pods on a real containerd: what they get, what a listing shows, and a runtime that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.cri import (
    CgroupDriver,
    CriError,
    CriRecord,
    CriRuntime,
    container_cgroup_path,
    list_cri_containers,
    runtime_info,
)
from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.status import oom_score_floor
from pinfold.core.pod.security import Security
from pinfold.core.pod.workload import Process, PullPolicy, SandboxOptions, VolumeMount
from pinfold.core.values.cpuset import CPUSet
from pinfold.logs.layout import LogLimits, parts
from pinfold.ports import nri
from pinfold.ports.cgroups import Limits, Placement
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerUpdate, Resources
from pinfold.ports.runtime import ContainerSpec, ContainerState
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.cri_world import CriWorld
from tests.scenes.log_texts import text_of
from tests.scenes.runtime_contract import a_spec, next_exit, play, started, until_exited


@pytest.fixture
def world(containerd: ContainerdNode) -> Iterator[CriWorld]:
    world = CriWorld(containerd)
    yield world
    world.clear()


@pytest.fixture
def fresh_world(fresh_containerd: ContainerdNode) -> Iterator[CriWorld]:
    world = CriWorld(fresh_containerd)
    yield world
    world.clear()


def log_of(world: CriWorld, name: str = "main", attempt: int = 0) -> list[str]:
    """What a container wrote, without the time and stream that each line begins with."""
    path = world.settings().log_root / "default_web_uid-1" / name / f"{attempt}.log"
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]


def output(world: CriWorld, spec: ContainerSpec) -> list[str]:
    async def run() -> list[str]:
        async with world.runtime() as runtime:
            created = await runtime.create(replace(spec, image=await runtime.pull(spec)))
            await runtime.start(created.id)
            ended = await until_exited(runtime, created.id)
            assert ended.exit_code == 0, ended
            return log_of(world)

    return play(run())


def test_a_flood_is_rotated_and_nothing_between_is_lost(world: CriWorld) -> None:
    limits = LogLimits(size=100_000, files=3)
    script = "i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done; sleep 1000"

    async def run() -> None:
        settings = replace(world.settings(), log_limits=limits)
        runtime = CriRuntime(world.client(), settings)
        created = await runtime.create(a_spec(world.shell(script)))
        await runtime.start(created.id)
        log = settings.log_root / "default_web_uid-1" / "main" / "0.log"
        while not text_of(log).endswith("line 29999\n"):
            assert await runtime.bound_logs() == []
            assert len(parts(log)) <= limits.files
            await asyncio.sleep(0.01)
        lines = [int(line.removeprefix("line ")) for line in text_of(log).splitlines()]
        assert lines == list(range(lines[0], 30000))
        assert len(parts(log)) == limits.files
        await runtime.remove(created.id)
        await runtime.remove_pod("uid-1")
        assert text_of(log).endswith("line 29999\n")
        await runtime.close()

    play(run())


def allowed_cpus(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return status.partition("Cpus_allowed_list:")[2].split()[0]


def cgroup_of(pid: int, controller: str) -> str:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") or not controllers:
            return path
    raise AssertionError(controller)


def test_a_container_finds_what_the_manifest_says(world: CriWorld) -> None:
    script = "echo $A $0; cat /proc/self/cpuset >/dev/null; echo x >/v/x; ls /v; echo $PINFOLD_CPUS"
    process = replace(
        world.shell(script),
        args=("zero",),
        env={"A": "a"},
        working_dir="/dev",
        volume_mounts=(VolumeMount("v", "/v"),),
        security=Security(run_as_user=7, run_as_group=8),
    )
    spec = replace(a_spec(process), env={"PINFOLD_CPUS": "0"}, oom_score_adj=-999)
    assert output(world, spec) == ["a zero", "x", "0"]
    volume = world.settings().volume_root / "uid-1" / "v" / "x"
    assert (volume.stat().st_uid, volume.stat().st_gid) == (7, 8)


def test_a_container_has_the_rights_that_the_manifest_gives_it(world: CriWorld) -> None:
    script = "grep -E '^(Groups|CapEff|NoNewPrivs|Seccomp):' /proc/self/status; echo x >/x"
    security = Security(
        run_as_user=0,
        supplemental_groups=(8, 9),
        add_capabilities=("CHOWN",),
        drop_capabilities=("ALL",),
        no_new_privileges=True,
        read_only_root=True,
        seccomp="RuntimeDefault",
    )
    said = output(world, a_spec(replace(world.shell(f"{script} || :"), security=security)))
    found = {name: value.split() for name, _, value in (line.partition(":") for line in said)}
    assert {"8", "9"} <= set(found["Groups"])
    assert (found["CapEff"], found["NoNewPrivs"]) == (["0000000000000001"], ["1"])
    assert found["Seccomp"] == ["2"]
    assert "sh: can't create /x: Read-only file system" in said


def test_a_container_that_must_not_be_root_is_not(world: CriWorld) -> None:
    for security, problem in (
        (Security(run_as_non_root=True), "container has runAsNonRoot and image will run as root"),
        (
            Security(run_as_non_root=True, run_as_user=0),
            "container's runAsUser breaks non-root policy",
        ),
    ):
        with pytest.raises(RuntimeFailedError, match=problem):
            output(world, a_spec(replace(world.shell("true"), security=security)))
    allowed = Security(run_as_non_root=True, run_as_user=7)
    assert output(world, a_spec(replace(world.shell("echo fine"), security=allowed))) == ["fine"]


def test_the_images_own_command_is_kept(world: CriWorld) -> None:
    async def case() -> None:
        async with world.runtime() as runtime:
            running = await started(runtime, world.process())
            assert running.pid is not None
            assert b"2000000000" in Path(f"/proc/{running.pid}/cmdline").read_bytes()

    play(case())


def test_resources_hold_from_the_first_instruction(world: CriWorld) -> None:
    placement = Placement(
        cpus=CPUSet([1]),
        limits=Limits(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000, memory=64 << 20),
    )
    spec = replace(
        a_spec(world.shell("grep Cpus_allowed_list /proc/self/status")), placement=placement
    )
    assert output(world, spec)[0].split()[-1] == "1"


def test_what_is_recorded_is_changed_and_listed(world: CriWorld) -> None:
    async def case() -> None:
        async with world.runtime() as runtime:
            spec = replace(
                a_spec(world.lasting()),
                cgroup_parent=f"/pinfold-cri-{world.node.folder.name}/pod1",
                placement=Placement(limits=Limits(cpu_shares=512, memory=64 << 20)),
            )
            created = await runtime.create(spec)
            client = world.client()
            record = CriRecord(client)
            assert await record.update([ContainerUpdate(created.id, Resources(cpus="1"))]) == []
            running = await runtime.start(created.id)
            assert running.pid is not None
            assert allowed_cpus(running.pid) == "1"
            with pytest.raises(RuntimeFailedError, match=created.id):
                await record.update([ContainerUpdate(created.id, Resources(cpus="4000"))])
            updates = [
                ContainerUpdate(created.id, Resources(cpus="0")),
                ContainerUpdate("gone", Resources(cpus="0")),
            ]
            assert await record.update(updates) == ["gone"]
            assert allowed_cpus(running.pid) == "0"
            pods, containers = await list_cri_containers(client)
            (pod,) = [pod for pod in pods if pod.uid == "uid-1"]
            assert (pod.name, pod.namespace) == ("web", "default")
            assert pod.pid is not None
            (seen,) = [item for item in containers if item.sandbox_id == pod.id]
            assert (seen.name, seen.state, seen.pid) == (
                "main",
                nri.ContainerState.RUNNING,
                running.pid,
            )
            assert (seen.resources.cpus, seen.resources.cpu_shares) == ("0", 512)
            assert seen.resources.memory == 64 << 20
            info = await runtime_info(client)
            assert (info.name, info.not_ready) == ("containerd", "")
            assert "cni" in info.network_problem.lower()
            assert info.cgroup_driver is CgroupDriver.CGROUPFS
            path = container_cgroup_path(spec.cgroup_parent, created.id, info.cgroup_driver)
            assert cgroup_of(running.pid, "cpuset").endswith(path)
            assert (seen.cgroups_path, pod.cgroup_parent) == (path, spec.cgroup_parent)
            await client.close()

    play(case())


def test_a_pod_is_removed_with_all_that_it_had(world: CriWorld) -> None:
    async def case() -> None:
        async with world.runtime() as runtime:
            first = replace(world.lasting(), volume_mounts=(VolumeMount("v", "/v"),))
            one = await started(runtime, first)
            two = await started(runtime, world.lasting(), "side")
            client = world.client()
            pods, _ = await list_cri_containers(client)
            assert [pod.uid for pod in pods] == ["uid-1"]
            for status in (one, two):
                await runtime.remove(status.id)
            await runtime.remove_pod("uid-1")
            await runtime.remove_pod("uid-1")
            assert await list_cri_containers(client) == ([], [])
            await client.close()
        settings = world.settings()
        assert list(settings.volume_root.iterdir()) == []
        # What a pod wrote stays until the pod is forgotten, which the runtime does not know.
        assert [folder.name for folder in settings.log_root.iterdir()] == ["default_web_uid-1"]

    play(case())


def test_a_sandbox_that_died_is_replaced(world: CriWorld) -> None:
    async def case() -> None:
        async with world.runtime() as runtime:
            await started(runtime, world.lasting())
            client = world.client()
            pods, _ = await list_cri_containers(client)
            assert pods[0].pid is not None
            os.kill(pods[0].pid, signal.SIGKILL)
            while True:
                listed = await client.call(
                    "ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse
                )
                if listed.items[0].state == pb.PodSandboxState.SANDBOX_NOTREADY:
                    break
                await asyncio.sleep(0.02)
            again = await started(runtime, world.lasting(), "side")
            assert again.state is ContainerState.RUNNING
            assert len((await list_cri_containers(client))[0]) == 2
            await client.close()

    play(case())


def test_others_containers_are_left_alone(world: CriWorld) -> None:
    async def case() -> None:
        client = world.client()
        async with world.runtime() as runtime:
            config = pb.PodSandboxConfig(
                metadata=pb.PodSandboxMetadata(name="k", uid="uid-k", namespace="kube-system"),
                labels={"io.kubernetes.pod.uid": "uid-k"},
                log_directory=str(world.folder),
            )
            config.linux.security_context.namespace_options.network = pb.NamespaceMode.NODE
            request = pb.RunPodSandboxRequest(config=config)
            sandbox = await client.call("RunPodSandbox", request, pb.RunPodSandboxResponse)
            labels = {"io.kubernetes.container.name": "k", "io.kubernetes.pod.uid": "uid-k"}
            foreign = await client.call(
                "CreateContainer",
                pb.CreateContainerRequest(
                    pod_sandbox_id=sandbox.pod_sandbox_id,
                    config=pb.ContainerConfig(
                        metadata=pb.ContainerMetadata(name="k"),
                        image=pb.ImageSpec(image=world.node.image),
                        labels=labels,
                    ),
                    sandbox_config=config,
                ),
                pb.CreateContainerResponse,
            )
            assert await runtime.containers() == []
            for change in (runtime.remove, runtime.start, lambda found: runtime.signal(found, 9)):
                with pytest.raises(RuntimeFailedError, match="somebody else"):
                    await change(foreign.container_id)
            await runtime.remove_pod("uid-k")
            pods, containers = await list_cri_containers(client)
            assert [pod.uid for pod in pods] == ["uid-k"]
            assert [found.id for found in containers] == [foreign.container_id]
            remove = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox.pod_sandbox_id)
            await client.call("RemovePodSandbox", remove, pb.RemovePodSandboxResponse)
        await client.close()

    play(case())


def test_an_image_that_is_not_there(world: CriWorld) -> None:
    async def case() -> None:
        async with world.runtime() as runtime:
            absent = Process(image="localhost:1/absent:1", image_pull_policy=PullPolicy.NEVER)
            with pytest.raises(RuntimeFailedError, match="imagePullPolicy is Never"):
                await runtime.pull(a_spec(absent))
            with pytest.raises(RuntimeFailedError, match="could not be pulled"):
                await runtime.pull(a_spec(replace(absent, image_pull_policy=None)))

    play(case())


def test_a_network_that_is_required_is_missed(world: CriWorld) -> None:
    async def case() -> None:
        runtime = world.open(require_network=True)
        with pytest.raises(RuntimeFailedError, match="hostNetwork"):
            await runtime.create(a_spec(world.lasting()))
        options = SandboxOptions(host_network=True)
        created = await runtime.create(replace(a_spec(world.lasting()), sandbox=options))
        assert created.state is ContainerState.CREATED
        await runtime.close()

    play(case())


def test_the_grace_period_is_the_pods_after_a_restart_too(world: CriWorld) -> None:
    async def case() -> None:
        deaf = world.shell("trap '' TERM; while :; do sleep 1; done")
        async with world.runtime() as runtime:
            created = await runtime.create(replace(a_spec(deaf), grace_period=1))
            await runtime.start(created.id)
            await asyncio.sleep(0.2)
        async with world.runtime() as runtime:
            began = time.monotonic()
            await runtime.signal(created.id, signal.SIGTERM)
            assert time.monotonic() - began < 0.5
            told = await next_exit(runtime)
            assert told.exit_code == 137
            assert 0.9 < time.monotonic() - began < 10

    play(case())


def test_a_containerd_that_is_killed_loses_no_exit(fresh_world: CriWorld) -> None:
    world, node = fresh_world, fresh_world.node

    async def case() -> None:
        async with world.runtime() as runtime:
            short = await started(runtime, world.shell("sleep 0.5; exit 5"), "short")
            long = await started(runtime, world.lasting(), "long")
            later = await started(runtime, world.lasting(), "later")
            node.kill()
            waiting = asyncio.create_task(next_exit(runtime))
            listing = asyncio.create_task(runtime.containers())
            await asyncio.sleep(0.8)
            assert not waiting.done()
            assert not listing.done()
            await asyncio.to_thread(node.start)
            assert len(await listing) == 3
            told = await waiting
            # containerd itself may lose the code of one that ended without it; it says so with 255.
            assert told.id == short.id
            assert told.exit_code == 5 or (told.exit_code, told.message[:7]) == (255, "Unknown")
            # The stream of events is back, or looking does as well.
            await runtime.signal(long.id, signal.SIGTERM)
            told = await next_exit(runtime)
            assert (told.id, told.exit_code) == (long.id, 143)
            created = await runtime.create(a_spec(world.ending(3), "new"))
            await runtime.start(created.id)
            assert (await next_exit(runtime)).exit_code == 3
            await runtime.signal(later.id, signal.SIGKILL)
            assert (await next_exit(runtime)).exit_code == 137

    play(case())


def test_a_containerd_that_stands_still_is_given_up(fresh_world: CriWorld) -> None:
    world, node = fresh_world, fresh_world.node

    async def case() -> None:
        async with world.runtime() as runtime:
            running = await started(runtime, world.lasting())
        client = world.client()
        client.quick = client.long = 0.5
        node.signal(signal.SIGSTOP)
        try:
            with pytest.raises(CriError) as raised:
                await runtime_info(client)
            assert raised.value.code in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
            assert str(node.address) in raised.value.problem
        finally:
            node.signal(signal.SIGCONT)
        async with world.runtime() as runtime:
            (status,) = await runtime.containers()
            assert (status.id, status.state) == (running.id, ContainerState.RUNNING)
        await client.close()

    play(case())


def test_the_floor_of_oom_scores_is_containerds(world: CriWorld) -> None:
    assert oom_score_floor(str(world.node.address)) in (
        -1000,
        int(Path("/proc/self/oom_score_adj").read_text()),
    )
