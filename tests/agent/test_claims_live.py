"""Two agents on one machine: what one has, another is refused, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import PATIENCE, eventually, wait_until

CPUS = CPUSet(os.sched_getaffinity(0))
OWN = CPUSet([max(CPUS)])


@pytest.fixture
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    with _agent(tmp_path_factory.mktemp("first")) as agent:
        yield agent


@contextlib.contextmanager
def _agent(folder: Path, **own: Any) -> Iterator[AgentProcess]:
    agent = AgentProcess(folder)
    agent.config["pinfold"] |= own
    agent.name = agent.config["pinfold"]["cgroupName"]
    try:
        yield agent
    finally:
        agent.clean_up()


def _trees(*agents: AgentProcess) -> list[str]:
    """Every cgroup of these agents, in all hierarchies."""
    return sorted(
        folder
        for agent in agents
        for base in open_cgroups(name=agent.name).bases
        for folder, _, _ in os.walk(base)
    )


def _things(folder: Path) -> list[str]:
    """What there is, but for what the tests put there themselves."""
    return sorted(str(path) for path in folder.rglob("*") if path.name != "log")


def _pods(agent: AgentProcess) -> dict[str, int]:
    """An owner and one who shares, running."""
    agent.apply(manifest("owner", ("main", IDLE, "1")))
    agent.apply(manifest("sharer", ("main", IDLE, "")))
    return {name: agent.pids(name)["main"] for name in ("owner", "sharer")}


@pytest.mark.parametrize("common", ["cgroupName", "stateDir", "socket"])
def test_what_one_agent_has_another_is_refused(
    first: AgentProcess, tmp_path: Path, common: str
) -> None:
    first.start()
    process = first.process
    assert process is not None
    pids = _pods(first)
    shared = first.config["pinfold"][common]
    with _agent(tmp_path, **{common: shared}) as second:
        second.config["pinfold"]["socket"] = str(tmp_path / "new" / "deep" / "s.sock")
        second.config["pinfold"][common] = shared
        (tmp_path / "config.yaml").touch()
        before = (_trees(first, second), _things(first.folder), _things(tmp_path))
        status, said = second.refused()
        assert status == 1, said
        assert "Traceback" not in said
        if common != "socket":
            assert "another agent" in said
            assert f"(process {process.pid})" in said
        for setting in ("cgroupName", "stateDir", "reservedSystemCPUs"):
            assert setting in said, said
        assert (_trees(first, second), _things(first.folder), _things(tmp_path)) == before
        second.name = "pinfold-test-none"  # what is cleaned up is not the first one's
    assert {name: first.pids(name)["main"] for name in pids} == pids
    assert allowed(pids["owner"]) == OWN
    assert first.client.get("/readyz") == "ok"
    assert first.client.post("/v1/reconcile")["drifts"] == []


def test_another_tree_is_refused_while_containers_live_in_this_one(first: AgentProcess) -> None:
    """What a container has forked away stays in the tree of before, where nobody looks."""
    first.start()
    pids = _pods(first)
    first.kill()
    name = first.name
    first.config["pinfold"]["cgroupName"] = f"{name}-2"
    for flags in ((), ("--on-mismatch=repair",)):
        status, said = first.refused(*flags)
        assert status == 1, said
        assert f"{name}-2" in said
        assert "go back to the `cgroupName` and `cgroupParent` of before" in said
        assert all(allowed(pid) for pid in pids.values()), "somebody was ended"
    assert list(Path("/sys/fs/cgroup").rglob(f"{name}-2")) == []
    first.config["pinfold"]["cgroupName"] = name
    first.start()
    assert {one: first.pids(one)["main"] for one in pids} == pids
    for one in pids:
        first.client.delete(f"/v1/pods/default/{one}", grace=0)
    first.stop()
    # Where nothing lives, another tree is as good.
    first.name = first.config["pinfold"]["cgroupName"] = f"{name}-2"
    first.start()


def test_of_ten_agents_that_start_at_once_one_serves(first: AgentProcess, tmp_path: Path) -> None:
    """Each with a state folder and a socket of its own, and a tree that is everybody's."""
    agents = []
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        agent = AgentProcess(folder)
        agent.config["pinfold"]["cgroupName"] = first.name
        agents.append(agent)
    processes = [agent.launch() for agent in agents]
    try:
        refused = wait_until(lambda: _nine_ended(processes), 60)
        assert [one.returncode for one in refused] == [1] * 9
        serving = next(agent for agent in agents if agent.process not in refused)
        assert serving.process is not None
        serving.started()
        assert _trees(first)
        for agent in agents:
            left = _things(agent.folder)
            if agent is not serving:
                assert left == _things_of_a_test(agent.folder)
                assert f"(process {serving.process.pid})" in agent.log()
    finally:
        for one in processes:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
                one.wait(20 * PATIENCE)
    assert _trees(first) == []


def _nine_ended(processes: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """Those that have ended, once at most one has not."""
    ended = [one for one in processes if one.poll() is not None]
    return ended if len(ended) >= 9 else []


def _things_of_a_test(folder: Path) -> list[str]:
    return sorted(str(folder / name) for name in ("config.yaml", "manifests"))


def test_a_killed_agent_lets_go(first: AgentProcess) -> None:
    first.start()
    pids = _pods(first)
    killed = first.process
    assert killed is not None
    killed.send_signal(signal.SIGKILL)  # and its successor does not wait for its end
    first.launch()
    killed.wait(20 * PATIENCE)
    eventually(lambda: _readiness(first), "ok")
    assert {name: first.pids(name)["main"] for name in pids} == pids
    assert first.client.get("/readyz") == "ok"


@pytest.mark.parametrize("setting", ["podResourcesSocket", "devicePluginDir"])
def test_a_start_that_is_refused_late_leaves_nothing(first: AgentProcess, setting: str) -> None:
    taken = first.folder / "taken"
    taken.write_text("neither a socket nor a folder")
    first.config["pinfold"][setting] = str(taken)
    (first.folder / "config.yaml").touch()
    before = (_trees(first), _things(first.folder))
    status, said = first.refused()
    assert status == 1
    assert str(taken) in said
    assert (_trees(first), _things(first.folder)) == before


def test_a_runtime_has_one_agent_for_its_plugin(first: AgentProcess, tmp_path: Path) -> None:
    """Each has a name, a state folder and a socket of its own; what they claim is the runtime's."""
    runtime = first.folder / "nri"
    runtime.mkdir()
    plugin = {
        "runtime": "nri",
        "nriSocket": str(runtime / "nri.sock"),
        "kubeletStateFile": "",
        "kubeletPodResources": "",
        "kubeconfig": "",
    }
    first.config["pinfold"] |= plugin
    first.start()
    assert first.process is not None
    with _agent(tmp_path, **plugin) as second:
        (tmp_path / "config.yaml").touch()
        before = (_trees(first, second), _things(tmp_path), _things(runtime))
        status, said = second.refused()
        assert status == 1
        assert f"another agent (process {first.process.pid}) is a plugin of the runtime" in said
        assert (_trees(first, second), _things(tmp_path), _things(runtime)) == before
        first.stop()
        assert _things(runtime) == []
        second.start()
        assert [Path(thing).name for thing in _things(runtime)] == ["pinfold.lock"]
        second.stop()


# -------------------------------------------------------------------------- a tree is taken away


def _remove(base: Path) -> None:
    """As ``cgdelete -r`` does: those in there go to the cgroup above, then it is removed.

    The agent may be mending meanwhile, so that it takes more than one round.
    """
    inode = _inode(base)
    while inode is not None and _inode(base) == inode:
        for folder, _, _ in os.walk(base, topdown=False):
            with contextlib.suppress(OSError):
                for pid in Path(folder, "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        (base.parent / "cgroup.procs").write_text(pid)
                Path(folder).rmdir()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


@pytest.mark.parametrize("which", ["cpuset", "all", "shared"])
def test_a_tree_that_is_taken_away_is_made_anew(
    first: AgentProcess, tmp_path: Path, which: str
) -> None:
    first.start()
    pids = _pods(first)
    bases = open_cgroups(name=first.name).bases
    places = {"cpuset": bases[:1], "all": bases, "shared": [bases[0] / "shared"]}[which]
    assert allowed(pids["owner"]) == OWN
    for place in places:
        _remove(place)
    eventually(lambda: allowed(pids["owner"]), OWN)
    eventually(lambda: allowed(pids["sharer"]), CPUS - OWN - CPUSet([0]) or CPUSet([0]))
    eventually(lambda: _readiness(first), "ok")
    assert {name: first.pids(name)["main"] for name in pids} == pids
    # It is watched again: who writes there is noticed without the period, which is an hour.
    owner = next(bases[0].glob("exclusive/*/main"))
    (owner / "cpuset.cpus").write_text("0")
    eventually(lambda: allowed(pids["owner"]), OWN)
    with _agent(tmp_path) as second:
        second.config["pinfold"]["cgroupName"] = first.name
        status, said = second.refused()
        assert (status, "cgroupName" in said) == (1, True), said


def _readiness(agent: AgentProcess) -> str:
    try:
        return str(agent.client.get("/readyz"))
    except click.ClickException as error:
        return error.message


def test_a_tree_that_somebody_else_has_now_is_told(first: AgentProcess) -> None:
    first.start()
    base = open_cgroups(name=first.name).bases[0]
    descriptor = -1
    while descriptor < 0:
        _remove(base)
        with contextlib.suppress(OSError):
            base.mkdir()
            descriptor = os.open(base, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != base.stat().st_ino:
                raise OSError
    try:
        wait_until(lambda: "cgroupName" in _readiness(first))
        assert f"process {os.getpid()}" in _readiness(first)
        assert "was taken away, and cannot be had again" in first.log()
    finally:
        os.close(descriptor)
    eventually(lambda: _readiness(first), "ok")


def test_what_another_agent_has_in_the_tree_is_left_alone(first: AgentProcess) -> None:
    first.config["cpuManagerReconcilePeriod"] = "100ms"
    first.start()
    pids = _pods(first)
    theirs = open_cgroups(name=first.name)
    key = ContainerKey("of-another-agent", "main")
    with subprocess.Popen(IDLE) as process:
        try:
            while True:
                _remove(theirs.bases[0])
                with contextlib.suppress(CgroupError):
                    theirs.claim.take(patience=0.0)
                    break

            async def run_one() -> None:
                await theirs.open(CPUSet([0]))
                await theirs.place(key, Placement())
                await theirs.enter(key, process.pid)

            asyncio.run(run_one())
            wait_until(lambda: "cgroupName" in _readiness(first))
            for request in (
                lambda: first.client.post("/v1/reconcile"),
                lambda: first.apply(manifest("more", ("main", IDLE, "1"))),
                lambda: first.client.delete("/v1/pods/default/owner"),
            ):
                with pytest.raises(
                    click.ClickException, match=r"cannot be had again: .*cgroupName"
                ):
                    request()
            assert asyncio.run(theirs.observe()).shared == CPUSet([0])
            assert process.poll() is None
            assert {name: first.pids(name)["main"] for name in pids} == pids
            asyncio.run(theirs.kill(key))
            asyncio.run(theirs.remove(key))
        finally:
            process.kill()
            theirs.claim.release()
    eventually(lambda: _readiness(first), "ok")
    eventually(lambda: allowed(pids["owner"]), OWN)
    first.client.delete("/v1/pods/default/owner")


# ------------------------------------------------------------------------------- whose a folder is


def test_a_state_folder_of_another_user_is_refused(first: AgentProcess) -> None:
    state = first.state
    state.mkdir()
    os.chown(state, 65533, 65533)
    status, said = first.refused()
    assert (status, "belongs to user 65533" in said) == (1, True), said
    assert "--state-dir" in said
    os.chown(state, 0, 0)
    state.chmod(0o777)
    status, said = first.refused()
    assert (status, "others may write there" in said) == (1, True), said
    assert list(state.iterdir()) == []
    state.rmdir()
    elsewhere = first.folder / "elsewhere"
    elsewhere.mkdir()
    state.symlink_to(elsewhere)
    os.chown(state, 65533, 65533, follow_symlinks=False)
    status, said = first.refused()
    assert (status, "a link that belongs to user 65533" in said) == (1, True), said
    assert list(elsewhere.iterdir()) == []
    assert _trees(first) == []
    os.chown(state, 0, 0, follow_symlinks=False)
    first.start()
    first.stop()
    shutil.rmtree(elsewhere)
