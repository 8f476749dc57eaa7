"""The audit on a real containerd: below an agent on NRI or CRI, beside a kubelet, and without both.

A test machine has processes, interrupts and kernel threads of its own, which no test can move.  So
the audits that must find nothing (or one thing) look at a root which has the processes and cgroups
of the scene only; everything in it is the running kernel's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pinfold.adapters.procfs.cgroups import find_hierarchies
from pinfold.adapters.procfs.files import KernelFiles
from pinfold.cli import main
from tests.scenes.audit_scene import SCENES, Scene, nri_scene, skip_unless_audited
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.waiting import eventually

QUIET = {"workqueue", "sandbox-allowed", "mems-wider"}
"""Infos that are always there: of the machine, and of pods' sandboxes."""
NAMES = ("web", "db")


@pytest.fixture(params=SCENES)
def scene(
    request: pytest.FixtureRequest, containerd: ContainerdNode, tmp_path: Path
) -> Iterator[Scene]:
    skip_unless_audited()
    yield from SCENES[request.param](containerd, tmp_path)


@pytest.fixture
def nri(containerd: ContainerdNode, tmp_path: Path) -> Iterator[Scene]:
    skip_unless_audited()
    yield from nri_scene(containerd, tmp_path)


# -------------------------------------------------------------------------------------- the tests


def test_what_is_done_to_containers_is_found_and_mended(scene: Scene) -> None:
    """Clean at first, then each finding by what provokes it, and clean again by its commands."""
    scene.clean()
    _a_cpuset_that_somebody_wrote(scene)
    _a_shared_container_that_somebody_widened(scene)
    _a_quota_of_the_pod(scene)
    _an_exec_and_where_it_went(scene)
    _somebody_who_joined(scene)
    _somebody_who_was_put_there(scene)


def _a_cpuset_that_somebody_wrote(scene: Scene) -> None:
    (scene.cpuset(scene.db) / "cpuset.cpus").write_text("0-1")
    found = scene.audit(status=1)
    differs = found["cpuset-differs"]
    assert differs["what"] == f"{scene.title('db')}: recorded 1, the kernel has 0-1"
    scene.fix(differs)
    scene.clean()


def _a_shared_container_that_somebody_widened(scene: Scene) -> None:
    (scene.cpuset(scene.web) / "cpuset.cpus").write_text("0-1")
    found = scene.audit(status=1)
    assert set(found) == {"shared-overlaps", "runtime-record"}
    overlaps, record = found["shared-overlaps"], found["runtime-record"]
    assert overlaps["what"].startswith(f"{scene.title('web')}: may run on the exclusive CPUs 1;")
    assert overlaps["owners"] == [scene.title("db")]
    assert record["what"] == (
        f"{scene.title('web')}: the runtime has 0 on record, the kernel has 0-1"
    )
    assert record["fix"] == [
        f"crictl --runtime-endpoint unix://{scene.node.address} update --cpuset-cpus 0 {scene.web}"
    ]
    scene.fix(overlaps)
    scene.clean()


def _a_quota_of_the_pod(scene: Scene) -> None:
    """As a kubelet sets it whose own policy is none; a smaller one caps the owner."""
    pod = scene.group("cpu", scene.pid(scene.db)).parent
    v2 = pod / "cpu.max"
    file = v2 if v2.exists() else pod / "cpu.cfs_quota_us"
    file.write_text("100000")
    tight = scene.audit(status=0)["quota-tight"]
    assert tight["what"] == (
        f"the pod of {scene.title('db')}: the quota is 100000 us of each 100000 us (1 CPUs) for "
        f"{scene.title('db')} on CPUs 1"
    )
    assert tight["severity"] == "info"
    scene.audit("--strict", status=1)
    file.write_text("50000")
    caps = scene.audit(status=1)["quota-caps"]
    assert caps["fix"] == [f"echo {'max' if v2.exists() else -1} > {file}"]
    scene.fix(caps)
    scene.clean()


def _an_exec_and_where_it_went(scene: Scene) -> None:
    pid = scene.exec(scene.db)
    stray = scene.audit(status=0)["exec-stray"]
    assert stray["what"] == (
        f"{scene.title('db')}: 1 process in its cgroup is not of its main process"
    )
    assert stray["examples"][0].startswith(f"{pid} sleep (allowed 1, ")
    home = scene.cpuset(scene.db)
    top = Path(find_hierarchies(KernelFiles())["cpuset"].folder)
    (top / "cgroup.procs").write_text(str(pid))
    # Kernels keep the narrow affinity, or widen it: either is a neighbour on the owner's CPU.
    found = scene.audit(status=1)
    (slug,) = found
    assert slug in ("stranger-ran", "stranger-allowed")
    assert found[slug]["what"].startswith(
        f"{scene.title('db')}: 1 thread of 1 process in its namespace and not in its cgroup may "
        "run on the exclusive CPUs 1; "
    )
    assert found[slug]["fix"] == [f"echo {pid} > {home}/cgroup.procs"]
    scene.fix(found[slug])
    back = scene.audit(status=0)
    assert set(back) == {"exec-stray"}
    scene.fix(back["exec-stray"])
    eventually(lambda: Path(f"/proc/{pid}").exists(), expected=False)
    scene.clean()


def _somebody_who_joined(scene: Scene) -> None:
    """By nsenter: into the owner, and into a container that shares."""
    for name, container in (("db", scene.db), ("web", scene.web)):
        target = str(scene.pid(container))
        pid = scene.host("nsenter", "--target", target, "--mount", "sleep", "500")
        found = scene.audit(status=1)
        (slug,) = found
        assert slug in ("stranger-ran", "stranger-allowed")
        assert found[slug]["what"].startswith(
            f"{scene.title(name)}: 1 thread of 1 process in its namespace and not in its cgroup"
        )
        assert found[slug]["examples"][0].startswith(f"{pid} sleep (allowed 0-1, ")
        scene.fix(found[slug])
        assert set(scene.audit(status=0)) == ({"exec-stray"} if name == "db" else set())
        scene.close()
        scene.processes.clear()
    scene.clean()


def _somebody_who_was_put_there(scene: Scene) -> None:
    pid = scene.host("sleep", "500")
    (scene.cpuset(scene.db) / "cgroup.procs").write_text(str(pid))
    foreign = scene.audit(status=1)
    assert set(foreign) == {"foreign-inside"}
    assert foreign["foreign-inside"]["what"] == (
        f"{scene.title('db')}: 1 process in its cgroup is not of the container"
    )
    scene.fix(foreign["foreign-inside"])
    scene.clean()


def test_a_stranger_on_the_machine_is_named_by_its_cgroup(nri: Scene) -> None:
    nri.host("sleep", "500", cpus="1")
    found = nri.audit(status=1)
    (slug,) = found
    assert found[slug]["what"].startswith("/: 1 thread of 1 process may run on")
    assert found[slug]["owners"] == [nri.title("db")]


def test_the_agent_died_between_the_kernel_and_the_runtimes_record(nri: Scene) -> None:
    nri.agent.kill()
    nri.update(nri.web, "0-1")
    (nri.cpuset(nri.web) / "cpuset.cpus").write_text("0")
    found = nri.audit(status=1)
    assert set(found) == {"runtime-record"}
    assert found["runtime-record"]["what"] == (
        f"{nri.title('web')}: the runtime has 0-1 on record, the kernel has 0"
    )
    nri.update(nri.web, "0")
    nri.clean()


def live(scene: Scene, *flags: str) -> tuple[str, dict[str, Any]]:
    """The audit of this machine, which has strangers of its own, as it is typed."""
    text = scene.agent.run("audit", *flags)
    found = scene.agent.run("audit", *flags, "-o", "json")
    assert (text.returncode, found.returncode) == (1, 1), (text, found)
    return text.stdout, json.loads(found.stdout)


def about(document: dict[str, Any], scene: Scene) -> set[str]:
    """The findings of errors and warnings in the scene's own cgroups."""
    return {
        one["slug"]
        for one in document["findings"]
        if one["severity"] != "info" and f"/{scene.tree}" in one["where"]
    }


@pytest.mark.parametrize("mode", ["nri", "cri"])
def test_a_running_agent_tells_what_there_is(
    containerd: ContainerdNode, tmp_path: Path, mode: str
) -> None:
    """Without any flag: on CRI it also tells which runtime to ask."""
    skip_unless_audited()
    for scene in SCENES[mode](containerd, tmp_path):
        text, document = live(scene)
        assert f"✓ {scene.title('db')}\n    CPUs 1\n" in text
        assert about(document, scene) == set()
        assert document["owners"][0]["uid"]
        (scene.cpuset(scene.web) / "cpuset.cpus").write_text("0-1")
        text, document = live(scene)
        wanted = {"shared-overlaps"} | ({"runtime-record"} if mode == "cri" else set())
        assert about(document, scene) == wanted
        titles = [one["what"].split(":")[0] for one in document["findings"]]
        assert scene.title("web") in titles
        assert ("runtime      unix://" in text) == (mode == "cri")


def test_nobody_but_the_cgroups_tells(nri: Scene) -> None:
    """No agent and no runtime: the uid is in the path, and the container is known by its CPUs."""
    arguments = ("audit", "--root", str(nri.root()), "--state", str(nri.state), "-o", "json")
    document = json.loads(CliRunner().invoke(main, arguments).stdout)
    (owner,) = document["owners"]
    assert (owner["pod"], owner["container"], owner["id"]) == ("uid-db", "main", nri.db)
    assert owner["effective"] == "1"


def test_a_runtime_that_does_not_answer_is_said(nri: Scene) -> None:
    endpoint = f"unix://{nri.folder}/nobody.sock"
    _, document = live(nri, "--runtime-endpoint", endpoint)
    incomplete = [one for one in document["findings"] if one["slug"] == "incomplete"]
    assert len(incomplete) == 1
    assert endpoint in incomplete[0]["what"]
    assert document["owners"][0]["pod"] == "default/db", "the agent has told"
