"""The example clients on real processes and cgroups: they follow, and end the delay early."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.moves.owners import Owner
from tests.roots import ROOT
from tests.scenes.agent_process import skip_unless_an_agent_can_run
from tests.scenes.live_node import LiveNode, live_node, threads_on
from tests.scenes.waiting import PATIENCE, until

CLIENTS = ROOT / "examples" / "follow"
OWNER = Owner("uid-follower", "main")
DELAY = 8.0


@pytest.fixture(autouse=True)
def able() -> None:
    skip_unless_an_agent_can_run()


def c_client(folder: Path) -> list[str]:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler (cc)")
    program = folder / "follow"
    subprocess.run(
        [
            *(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"),
            *("-o", str(program), str(CLIENTS / "follow.c")),
        ],
        check=True,
    )
    return [str(program), "3"]


def python_client(_folder: Path) -> list[str]:
    return [sys.executable, str(CLIENTS / "follow.py"), "3"]


def pod(command: Sequence[str]) -> dict[str, Any]:
    limits = {"cpu": "1", "memory": "64Mi"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "follower", "uid": OWNER.pod_uid},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": OWNER.container,
                    "command": list(command),
                    "resources": {"limits": limits, "requests": limits},
                }
            ],
        },
    }


class Told:
    """The folder of the container."""

    def __init__(self, node: LiveNode) -> None:
        self.folder = node.assignments / OWNER.pod_uid / OWNER.container

    @property
    def assignment(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / "assignment.json").read_text())
        return found

    @property
    def acknowledged(self) -> str:
        return (self.folder / "ack" / "generation").read_text().strip()

    async def agrees(self, generation: int) -> None:
        await until(lambda: self.acknowledged == str(generation), 30)


async def grown(node: LiveNode, command: Sequence[str]) -> tuple[int, Told]:
    """A pod on both CPUs, which begins with the second."""
    manifest = pod(command)
    pid = await node.admit(manifest, json.dumps(manifest))
    assert threads_on(pid) == {"1"}
    assert (await (await node.move(OWNER, "0-1", 0.0)).ended()).done
    told = Told(node)
    await until(lambda: told.assignment["generation"] == 2)
    return pid, told


@pytest.mark.parametrize("client", [c_client, python_client])
def test_a_client_without_cpus_of_its_own_says_so(tmp_path: Path, client: object) -> None:
    program = client(tmp_path)[:-1]  # type: ignore[operator] # one of the two above
    nowhere = {**os.environ, "PINFOLD_ASSIGNMENT_DIR": str(tmp_path)}
    for words, status, said in (
        (["3"], 1, f"no exclusive CPUs here: no folder {tmp_path}/..data\n"),
        (["abc"], 2, f"usage: {program[-1]} [THREADS]\n"),
        (["1", "2"], 2, f"usage: {program[-1]} [THREADS]\n"),
    ):
        ended = subprocess.run(
            [*program, *words], check=False, env=nowhere, capture_output=True, text=True
        )
        assert (ended.returncode, ended.stderr) == (status, said)


@pytest.mark.parametrize("client", [c_client, python_client])
def test_a_client_leaves_its_cpus_before_they_are_taken(tmp_path: Path, client: object) -> None:
    command = client(tmp_path)  # type: ignore[operator] # one of the two above

    async def scene() -> None:
        async with live_node(tmp_path) as node:
            pid, told = await grown(node, command)
            await until(lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) == 4)
            await told.agrees(2)
            assert threads_on(pid) == {"0", "1"}
            node.cgroups.seen.clear()
            moving, began = await node.move(OWNER, "1", DELAY * PATIENCE), time.monotonic()
            assert (await moving.ended()).done
            took = time.monotonic() - began
            # Nobody has narrowed anything when all threads are gone from CPU 0.
            assert [(cpus, threads) for _, cpus, threads in node.cgroups.seen] == [("1", {"1"})]
            assert took < DELAY * PATIENCE
            await told.agrees(4)
            assert told.assignment["deadline"] is None

    asyncio.run(scene())


def test_who_does_nothing_keeps_its_cpus_until_the_deadline(tmp_path: Path) -> None:
    async def scene() -> None:
        async with live_node(tmp_path) as node:
            pid, told = await grown(node, ["sleep", "1000"])
            node.cgroups.seen.clear()
            told.folder.joinpath("ack", "generation").write_text("2")
            began = time.monotonic()
            moving = await node.move(OWNER, "1", 2.0)
            await until(lambda: told.assignment["generation"] == 3)
            assert told.assignment["coming"] == {"cpus": "1", "mems": ""}
            while not node.cgroups.seen:
                on, early = threads_on(pid), time.monotonic() - began < 2.0
                assert on == {"0-1"} or not early
                await asyncio.sleep(0.01)
            assert (await moving.ended()).done
            ((_, cpus, threads),) = node.cgroups.seen
            assert (cpus, threads) == ("1", {"0-1"})
            assert time.monotonic() - began >= 2.0
            assert threads_on(pid) == {"1"}

    asyncio.run(scene())


def test_a_volume_of_the_downward_api_follows_and_a_variable_does_not(tmp_path: Path) -> None:
    script = 'echo "$CPUS/$MEMS/$PINFOLD_VOLUME_TOLD" >"$PINFOLD_VOLUME_OUT/words"; exec sleep 1000'
    manifest = pod(["sh", "-c", script])

    def field(resource: str) -> dict[str, object]:
        return {"resourceFieldRef": {"resource": resource, "containerName": OWNER.container}}

    items = [
        {"path": "cpus", **field("assigned.cpuset")},
        {"path": "deep/mems", **field("assigned.memset"), "mode": 0o400},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
    ]
    manifest["spec"]["volumes"] = [
        {"name": "told", "downwardAPI": {"items": items, "defaultMode": 0o444}},
        {"name": "out", "emptyDir": {}},
    ]
    (container,) = manifest["spec"]["containers"]
    container["volumeMounts"] = [
        {"name": "told", "mountPath": "/etc/told"},
        {"name": "out", "mountPath": "/out"},
    ]
    container["env"] = [
        {"name": "CPUS", "valueFrom": field("assigned.cpuset")},
        {"name": "MEMS", "valueFrom": field("assigned.memset")},
    ]

    async def scene() -> None:
        async with live_node(tmp_path) as node:
            await node.admit(manifest, json.dumps(manifest))
            volumes = tmp_path / "pods" / OWNER.pod_uid / "volumes"
            told = volumes / "kubernetes.io~downward-api" / "told"
            words = volumes / "kubernetes.io~empty-dir" / "out" / "words"
            await until(lambda: words.exists() and words.read_text())
            assert words.read_text() == f"1//{told}\n"
            files = {name: (told / name).read_text() for name in ("cpus", "deep/mems", "name")}
            assert files == {"cpus": "1", "deep/mems": "", "name": "follower"}
            assert (told / "cpus").readlink() == Path("..data/cpus")
            assert [(told / n).stat().st_mode & 0o777 for n in files] == [0o444, 0o400, 0o444]
            assert (await (await node.move(OWNER, "0-1", 0.0)).ended()).done
            await until(lambda: (told / "cpus").read_text() == "0-1")
            moving = await node.move(OWNER, "0", 60.0)
            # What is to come is shown from the beginning of the delay.
            await until(lambda: (told / "cpus").read_text() == "0")
            acknowledgement = node.assignments / OWNER.pod_uid / OWNER.container / "ack/generation"
            acknowledgement.write_text("3")
            assert (await moving.ended()).done
        assert not volumes.exists()

    asyncio.run(scene())
