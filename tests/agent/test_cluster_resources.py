"""A file of what belongs to no node: published as it is now, and not when it cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from pinfold.agent.replica.cluster_resources import ClusterResources, read_cluster_resources
from pinfold.config.values import ConfigError
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import COMPUTE_RESOURCES
from tests.scenes.kubernetes_worlds import in_background
from tests.scenes.waiting import until


def licences(**counts: int) -> str:
    """Licences of some products."""
    return yaml.safe_dump_all(
        {
            "apiVersion": "pinfold.dev/v1alpha1",
            "kind": "ComputeResource",
            "metadata": {"name": name},
            "spec": {"resourceName": "example.com/licence", "properties": {"product": name}},
            "status": {"capacity": str(count)},
        }
        for name, count in counts.items()
    )


def mount(folder: Path, text: str) -> Path:
    """Have a file say this, as a kubelet does it: all that is mounted changes at once."""
    made = folder / f"..{len(list(folder.iterdir()))}"
    made.mkdir()
    (made / "resources.yaml").write_text(text)
    link = folder / "..new"
    link.symlink_to(made.name)
    link.rename(folder / "..data")
    file = folder / "resources.yaml"
    if not file.is_symlink():
        file.symlink_to("..data/resources.yaml")
    return file


def test_what_the_file_says_is_published_whenever_it_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster, problems = FakeCluster(), list[str]()
        cluster.create(COMPUTE_RESOURCES, {"metadata": {"name": "x"}, "spec": {}})

        def found() -> dict[str, str]:
            return {
                one["metadata"]["name"]: one.get("status", {}).get("capacity", "")
                for one in cluster.chunk(COMPUTE_RESOURCES).objects
            }

        file = mount(tmp_path, licences(solver=40, mesher=2))
        one = ClusterResources(FakeKubernetes(cluster), file, problems.append)
        async with in_background(one.run()):
            await until(lambda: found() == {"x": "", "solver": "40", "mesher": "2"})
            mount(tmp_path, licences(solver=41))
            await until(lambda: found() == {"x": "", "solver": "41"})
            mount(tmp_path, "kind: Pod")
            await until(lambda: problems)
            assert problems[0].startswith(f"{file}: line 1: must be a ResourceClass or a Compute")
            mount(tmp_path, licences(viewer=1))
            await until(lambda: found() == {"x": "", "viewer": "1"})
            assert problems[1:] == [""]

    asyncio.run(scenario())


def test_who_leads_once_more_publishes_nothing_of_its_earlier_lead(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster, problems = FakeCluster(), list[str]()

        def capacity() -> list[str]:
            found = cluster.chunk(COMPUTE_RESOURCES).objects
            return [one.get("status", {}).get("capacity", "") for one in found]

        file = mount(tmp_path, licences(solver=40))
        one = ClusterResources(FakeKubernetes(cluster), file, problems.append)
        async with in_background(one.run()):
            await until(lambda: capacity() == ["40"])
        mount(tmp_path, licences(solver=10))
        other = ClusterResources(FakeKubernetes(cluster), file, problems.append)
        async with in_background(other.run()):
            await until(lambda: capacity() == ["10"])
        mount(tmp_path, "]")
        before = cluster.read(COMPUTE_RESOURCES, "solver")
        async with in_background(one.run()):
            await until(lambda: problems)
        assert cluster.read(COMPUTE_RESOURCES, "solver") == before
        mount(tmp_path, licences(solver=11))
        async with in_background(one.run()):
            await until(lambda: capacity() == ["11"])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            licences(a=1).replace("spec:", "spec:\n  nodeName: node-1"),
            "spec.nodeName: has to be left",
        ),
        (
            "apiVersion: pinfold.dev/v1alpha1\nkind: ResourceClass\nmetadata: {name: gold}\n",
            "ResourceClass gold: only ComputeResources",
        ),
        ("]", "line 1"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_cluster_resources(file)
    assert str(refused.value).startswith(str(file))
    assert said in str(refused.value)


def test_without_the_file_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_cluster_resources(tmp_path / "none.yaml")
