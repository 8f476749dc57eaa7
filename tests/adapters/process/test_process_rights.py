"""As whom a container's process runs: what an observer reads of it in ``/proc``."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.process.credentials import Credentials, credentials_of
from pinfold.adapters.process.privileges import take
from pinfold.agent.pods import check_processes
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.security import CAPABILITIES, Security
from pinfold.core.pod.workload import Process
from pinfold.ports.errors import RuntimeFailedError
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
)
from tests.scenes.runtime_contract import a_spec, play
from tests.scenes.waiting import wait_until

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
FREE_USER = 54321
"""A user that no machine has."""


world = pytest.fixture(a_process_world)


def observed(world: ProcessWorld, process: Process) -> dict[str, Any]:
    """What the kernel says of a running container's process."""

    async def run() -> dict[str, Any]:
        runtime = world.open()
        try:
            created = await runtime.create(a_spec(process))
            waiting = _status(created.pid or 0)
            running = await runtime.start(created.id)
            pid = running.pid or 0
            # It has its arguments after its rights.
            wait_until(lambda: _read(pid, "cmdline")[0] == b"sleep")
            entries = (entry.split(b"=", 1) for entry in _read(pid, "environ"))
            env = {name.decode(): value.decode() for name, value in filter(_is_pair, entries)}
            return {"env": env, "before": waiting["Uid"], **_status(pid)}
        finally:
            await runtime.close()

    return play(run())


def _read(pid: int, name: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")


def _is_pair(entry: list[bytes]) -> bool:
    return len(entry) == 2


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: " ".join(value.split()) for name, _, value in (x.partition(":") for x in lines)}


def sleeping(**context: Any) -> Process:
    """A process with this ``securityContext``, as a manifest has it."""
    pod = context.pop("pod", {})
    container = {"name": "main", "command": ["sleep", "1000"], "securityContext": context}
    spec = {"containers": [container], "securityContext": pod}
    return workload_from_api({"metadata": {"name": "web"}, "spec": spec}).processes["main"]


@ROOT_ONLY
def test_user_and_groups_are_in_force(world: ProcessWorld) -> None:
    context = {"runAsGroup": 7, "supplementalGroups": [8, 9], "fsGroup": 10, "runAsUser": 1}
    found = observed(world, sleeping(runAsUser=FREE_USER, pod=context))
    assert found["Uid"] == " ".join([str(FREE_USER)] * 4)
    assert found["Gid"] == "7 7 7 7"
    assert found["Groups"] == "7 8 9 10"
    assert {found[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    assert found["NoNewPrivs"] == "0"
    assert found["env"]["HOME"] == "/"
    assert found["before"] == "0 0 0 0", "it is placed before it gives anything up"


@ROOT_ONLY
def test_a_user_of_this_machine_has_its_groups_and_home(world: ProcessWorld) -> None:
    user = pwd.getpwnam("nobody")
    found = observed(world, sleeping(runAsUser=user.pw_uid))
    assert found["Gid"].split()[0] == str(user.pw_gid)
    assert found["Groups"].split() == [
        str(group) for group in sorted(set(os.getgrouplist(user.pw_name, user.pw_gid)))
    ]
    assert found["env"]["HOME"] == user.pw_dir
    strict = {"supplementalGroups": [8], "supplementalGroupsPolicy": "Strict"}
    found = observed(world, sleeping(runAsUser=user.pw_uid, pod=strict))
    assert found["Groups"].split() == ["8", str(user.pw_gid)]


def masks(found: dict[str, Any]) -> dict[str, int]:
    return {name: int(found[name], 16) for name in ("CapBnd", "CapPrm", "CapEff", "CapInh")}


@ROOT_ONLY
def test_what_is_dropped_cannot_be_had(world: ProcessWorld) -> None:
    before = masks(observed(world, sleeping()))
    everything = {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "CAP_CHOWN"]}
    kept = masks(observed(world, sleeping(capabilities=everything)))
    wanted = 1 << CAPABILITIES.index("NET_BIND_SERVICE") | 1 << CAPABILITIES.index("CHOWN")
    assert kept == {"CapBnd": wanted, "CapPrm": wanted, "CapEff": wanted, "CapInh": 0}
    some = masks(observed(world, sleeping(capabilities={"drop": ["NET_RAW"]})))
    raw = 1 << CAPABILITIES.index("NET_RAW")
    assert some["CapBnd"] == before["CapBnd"] & ~raw
    assert some["CapEff"] == before["CapEff"] & ~raw
    free = masks(observed(world, sleeping(privileged=True, capabilities={"drop": ["ALL"]})))
    assert free == before, "as in a runtime, a privileged container has them all"


def test_nothing_new_can_be_gained(world: ProcessWorld) -> None:
    assert observed(world, sleeping(allowPrivilegeEscalation=False))["NoNewPrivs"] == "1"
    assert observed(world, sleeping(allowPrivilegeEscalation=True))["NoNewPrivs"] == "0"


@ROOT_ONLY
def test_all_of_it_together(world: ProcessWorld) -> None:
    """What a restricted pod of Kubernetes says, as far as a process can have it."""
    found = observed(
        world,
        sleeping(
            allowPrivilegeEscalation=False,
            capabilities={"drop": ["ALL"]},
            runAsNonRoot=True,
            runAsUser=FREE_USER,
            runAsGroup=FREE_USER,
        ),
    )
    assert set(masks(found).values()) == {0}
    assert (found["NoNewPrivs"], found["Uid"].split()[1]) == ("1", str(FREE_USER))


@ROOT_ONLY
def test_a_command_that_the_user_may_not_execute_says_so(world: ProcessWorld) -> None:
    program = world.folder / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)

    async def run() -> None:
        runtime = world.open()
        try:
            security = Security(run_as_user=FREE_USER, run_as_group=FREE_USER)
            created = await runtime.create(a_spec(Process((str(program),), security=security)))
            with pytest.raises(RuntimeFailedError) as raised:
                await runtime.start(created.id)
            assert raised.value.problem == f"cannot execute {program}: Permission denied"
            (status,) = await runtime.containers()
            assert status.exit_code == 126
        finally:
            await runtime.close()

    play(run())


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        (
            {"runAsNonRoot": True, "runAsUser": 0},
            "container's runAsUser breaks non-root policy",
        ),
        pytest.param(
            {"runAsNonRoot": True},
            "container has runAsNonRoot and image will run as root",
            marks=ROOT_ONLY,
        ),
        pytest.param(
            {"runAsUser": FREE_USER},
            f"runAsUser {FREE_USER}: this machine has no such user",
            marks=ROOT_ONLY,
        ),
    ],
)
def test_what_cannot_be_is_refused_beforehand(context: dict[str, Any], problem: str) -> None:
    container = {"name": "main", "command": ["true"], "securityContext": context}
    pod = {"metadata": {"name": "web"}, "spec": {"containers": [container]}}
    workload = workload_from_api(pod)
    with pytest.raises(PodError, match=problem) as raised:
        check_processes(workload, attached=False)
    assert raised.value.path == "spec.containers[0].securityContext"


@pytest.mark.parametrize("key", ["containers", "initContainers"])
def test_a_container_without_a_command_is_refused_beforehand(key: str) -> None:
    lists = {"containers": [{"name": "main", "command": ["true"]}]}
    lists[key] = [{"name": "bare", "image": "nginx"}]
    workload = workload_from_api({"metadata": {"name": "web"}, "spec": lists})
    with pytest.raises(PodError, match="Required value: without a container runtime") as raised:
        check_processes(workload, attached=False)
    assert raised.value.path == f"spec.{key}[0].command"
    if key == "containers":
        check_processes(workload, attached=True)


def test_a_process_of_somebody_else_keeps_its_rights() -> None:
    container = {"name": "main", "securityContext": {"allowPrivilegeEscalation": False}}
    pod = {"metadata": {"name": "web"}, "spec": {"containers": [container]}}
    with pytest.raises(PodError, match="has the rights of its parent"):
        check_processes(workload_from_api(pod), attached=True)


def without_root(say: Callable[[], str]) -> str:
    """What is said in a process of a user without rights; what it raises after a ``!``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(FREE_USER, FREE_USER, FREE_USER)
            os.setresuid(FREE_USER, FREE_USER, FREE_USER)
            text = say()
        except Exception as error:  # noqa: BLE001 - the child is never to go on as the test
            text = f"! {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def as_nobody(security: Security) -> str:
    """What an agent that is not root says to it, "" where it can be."""
    return without_root(lambda: credentials_of(security).order())


@ROOT_ONLY
def test_an_agent_that_is_not_root_gives_only_what_it_has() -> None:
    own = Security(run_as_user=FREE_USER, run_as_group=FREE_USER, run_as_non_root=True)
    assert as_nobody(own) == ""
    assert as_nobody(Security(run_as_user=1)).startswith("! the agent runs as user 54321")
    assert as_nobody(Security(run_as_group=1)).startswith("! the agent runs as user 54321")
    assert "groups than its own: 4" in as_nobody(Security(supplemental_groups=(4,)))
    assert as_nobody(Security(no_new_privileges=True)) == ". . - . 1"


def test_what_the_api_server_refuses() -> None:
    for context, problem in (
        ({"allowPrivilegeEscalation": False, "privileged": True}, "and `privileged` to true"),
        (
            {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_ADMIN"]}},
            "and `capabilities.Add` CAP_SYS_ADMIN",
        ),
        ({"capabilities": {"drop": ["ALLES"]}}, "Unsupported value: 'ALLES'"),
        ({"capabilities": {"drop": "ALL"}}, "must be a list"),
        ({"seccompProfile": {"type": "Default"}}, 'Unsupported value: "Default"'),
        ({"pod": {"supplementalGroups": ["a"]}}, "must be a number"),
        ({"pod": {"supplementalGroupsPolicy": "None"}}, 'Unsupported value: "None"'),
    ):
        with pytest.raises(PodError, match=problem):
            sleeping(**context)


@ROOT_ONLY
@pytest.mark.parametrize("no_new", [True, False])
def test_who_has_nothing_to_drop_needs_not_be_root_for_it(no_new: bool) -> None:
    """Without root no bounding set can be changed; what can gain nothing needs no such change."""
    order = Credentials(dropped=(0, 12), no_new_privileges=no_new).order().encode()

    def give_up() -> str:
        take(order)
        return Path("/proc/self/status").read_text()

    said = without_root(give_up)
    if no_new:
        assert "\nNoNewPrivs:\t1\n" in said
    else:
        assert said == "! [Errno 1] Operation not permitted"
