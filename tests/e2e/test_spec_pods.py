"""Every example pod of the specification, live, in each of the three ways to run pods.

What is expected is always what ``pinfold plan`` answers for the same machine, configuration and
pods, so the tests hold on any machine: on a small one some pods are refused, with the planned text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from click.testing import CliRunner

from pinfold.cli import main
from pinfold.core.values.cpuset import CPUSet
from tests.roots import ROOT
from tests.scenes.agent_process import allowed, skip_unless_an_agent_can_run
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.pod_worlds import (
    CriWorld,
    Manifest,
    NriWorld,
    ProcessWorld,
    RefusedPodError,
    World,
    patient_containerd,
    planned,
    started,
)

STATIC: Final[Mapping[str, Any]] = {}
FULL_CORES: Final = {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}


def _pod(name: str, container: str, resources: Mapping[str, Any], **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": container, "resources": resources}], **spec},
    }


def _both(**amounts: str) -> Mapping[str, Any]:
    return {"requests": amounts, "limits": amounts}


def _cpu_manager_pods() -> Iterator[Manifest]:
    """The table "Example pod specs and interpretation"."""
    yield from yaml.safe_load_all((ROOT / "examples" / "spec-pods" / "pods.yaml").read_text())


PODS: Final = {
    **{pod["metadata"]["name"]: pod for pod in _cpu_manager_pods()},
    # The article on the CPU manager: a container that is pinned.
    "nginx": _pod("nginx", "nginx", _both(cpu="2", memory="200Mi")),
    # Rejecting what is not SMT-aligned: five CPUs, and the six that they stand for.
    "frontend": _pod("frontend", "app", _both(cpu="5", memory="128Mi")),
    "frontend-six": _pod("frontend-six", "app", _both(cpu="6", memory="128Mi")),
    # Hugepages; the elided rest of the specification's example has to name cpu or memory.
    "example": _pod(
        "example",
        "a",
        _both(**{"hugepages-2Mi": "1Gi", "cpu": "1", "memory": "64Mi"}),
        volumes=[{"name": "hugepage", "emptyDir": {"medium": "HugePages"}}],
    ),
}
INVALID: Final = {
    "three-physical-cores": _pod("frontend", "app", _both(cpu="3p", memory="128Mi")),
    "hugepages-alone": _pod("example", "a", _both(**{"hugepages-2Mi": "1Gi"})),
}
WAYS: Final = ("process", "cri", "nri")


def _open(request: pytest.FixtureRequest, way: str, folder: Path) -> World:
    if way == "process":
        return ProcessWorld(folder)
    node = request.getfixturevalue("node")
    return CriWorld(folder, node) if way == "cri" else NriWorld(folder, node)


@pytest.fixture(scope="module")
def node() -> Iterator[ContainerdNode]:
    with patient_containerd() as one:
        yield one


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    skip_unless_an_agent_can_run()
    way, options = request.param
    one = _open(request, way, tmp_path_factory.mktemp(way))
    one.agent.config |= options
    with started(one) as running:
        yield running


def _ways(options: Mapping[str, Any]) -> list[Any]:
    kind = "full-cores" if options else "static"
    return [pytest.param((way, options), id=f"{way}-{kind}") for way in WAYS]


def _plan(world: World, *pods: Manifest) -> Any:
    return planned(world.agent.folder / "config.yaml", world.agent.folder, pods)


def _shared(plan: Any) -> CPUSet:
    """Where shared containers run: not on reserved CPUs while there are others."""
    shared = CPUSet.parse(plan["shared"])
    return shared - CPUSet.parse(plan["reserved"]) or shared


def _expected(plan: Any, shown: Any) -> dict[str, CPUSet]:
    return {
        one["name"]: CPUSet.parse(one["cpus"]) if one["exclusive"] else _shared(plan)
        for one in shown["containers"]
    }


def _prove(world: World, pod: Manifest) -> None:
    whole = world.agent.client.get("/v1/status")["shared"]
    dressed = world.dress(pod)
    plan = _plan(world, dressed)
    [shown] = plan["pods"]
    if world.name == "nri" and (shown["reason"] or "").startswith("OutOf"):
        pytest.skip("a kubelet refuses it before its runtime hears of it")
    name = pod["metadata"]["name"]
    try:
        if shown["admitted"]:
            running = world.run(dressed)
            assert {key: one.allowed for key, one in running.items()} == _expected(plan, shown)
            assert world.agent.client.get("/v1/status")["shared"] == plan["shared"]
        else:
            with pytest.raises(RefusedPodError) as refused:
                world.run(dressed)
            assert f"{shown['reason']}: {shown['message']}" in str(refused.value)
            assert world.agent.client.get("/v1/status")["shared"] == whole
    finally:
        world.end(name)
    assert world.agent.client.get("/v1/status")["shared"] == whole, "a CPU was lost"


@pytest.mark.parametrize("world", _ways(STATIC), indirect=True)
@pytest.mark.parametrize("name", PODS)
def test_example_pod(world: World, name: str) -> None:
    _prove(world, PODS[name])


@pytest.mark.parametrize("world", _ways(FULL_CORES), indirect=True)
@pytest.mark.parametrize("name", ["frontend", "frontend-six", "guaranteed-one-and-half"])
def test_example_pod_with_whole_cores_only(world: World, name: str) -> None:
    _prove(world, PODS[name])


@pytest.mark.parametrize("world", _ways(STATIC), indirect=True)
def test_all_example_pods_of_the_cpu_manager_together(world: World) -> None:
    """Shared containers follow each owner that comes, and come back when all have gone."""
    pods = [world.dress(pod) for pod in _cpu_manager_pods()]
    if world.name == "nri":
        # A kubelet would not show its runtime those that do not fit.
        pods = [
            pod
            for pod, shown in zip(pods, _plan(world, *pods)["pods"], strict=True)
            if not (shown["reason"] or "").startswith("OutOf")
        ]
    plan = _plan(world, *pods)
    given = {}
    try:
        for pod, shown in zip(pods, plan["pods"], strict=True):
            name = pod["metadata"]["name"]
            if shown["admitted"]:
                given[name] = world.run(pod)
            else:
                with pytest.raises(RefusedPodError, match=shown["reason"]):
                    world.run(pod)
        status = world.agent.client.get("/v1/status")
        assert status["shared"] == plan["shared"]
        for shown in plan["pods"]:
            for name, cpus in _expected(plan, shown).items() if shown["admitted"] else ():
                found = given[shown["name"]][name]
                assert allowed(found.pid) == cpus, (shown["name"], name)
    finally:
        for pod in pods:
            world.end(pod["metadata"]["name"])
    everything = CPUSet.parse(plan["machine"]["cpus"])
    assert world.agent.client.get("/v1/status")["shared"] == str(everything)


@pytest.mark.parametrize("world", _ways(STATIC)[:2], indirect=True)
@pytest.mark.parametrize("name", INVALID)
def test_example_pod_that_no_api_server_takes(world: World, name: str) -> None:
    """Refused with the planner's text, before anything is done."""
    pod = world.dress(INVALID[name])
    file = world.agent.folder / "invalid.yaml"
    file.write_text(yaml.safe_dump(dict(pod)))
    told = CliRunner().invoke(main, ["plan", "--policy", "none", str(file)])
    assert told.exit_code == 2
    problem = told.stderr.partition("': ")[2].strip()
    with pytest.raises(click.ClickException) as refused:
        world.agent.apply(pod)
    assert problem in refused.value.message
    assert world.agent.client.get("/v1/pods")["pods"] == []
