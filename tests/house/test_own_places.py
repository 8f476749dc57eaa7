"""The tests themselves, on a machine that has a kubelet, a container runtime and an agent.

The machine is made in a mount namespace: its well-known places hold sockets that listen, and files.
The tests are run there by a pytest of their own; nobody may connect, and nothing may change.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roots import ROOT
from tests.scenes.agent_process import (
    skip_unless_an_agent_can_run,
)
from tests.scenes.own_places import PLACES, SHIMS, VARIABLES, OwnPlaces
from tests.scenes.waiting import PATIENCE

OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/nri/nri.sock",
    "/run/pinfold/pinfold.sock",
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/var/lib/kubelet/device-plugins/gpu.sock",
    "/var/lib/kubelet/pod-resources/kubelet.sock",
)
FILES = (
    "/run/pinfold/alone.json",
    "/var/lib/kubelet/cpu_manager_state",
    "/var/lib/pinfold/pinfold.db",
)


def main() -> None:
    """``python -m tests.house.test_own_places TEST...``: make it, run them, look."""
    for base in ("/run", "/var/lib"):
        subprocess.run(["mount", "-t", "tmpfs", "none", base], check=True)
    listeners = []
    for name in SOCKETS:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        one = socket.socket(socket.AF_UNIX)
        one.bind(name)
        one.listen()
        one.settimeout(0)
        listeners.append(one)
    for name in FILES:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("the machine's")
    before = _things()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *sys.argv[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    connected = []
    for name, one in zip(SOCKETS, listeners, strict=True):
        try:
            one.accept()
        except BlockingIOError:
            continue
        connected.append(name)
    changed = sorted(set(before.items()) ^ set(_things().items()))
    answer = {"status": done.returncode, "connected": connected, "changed": changed}
    sys.stdout.write(json.dumps({**answer, "said": done.stdout[-4000:] + done.stderr[-1000:]}))


def _things() -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for base in ("/run", "/var/lib")
        for path in Path(base).rglob("*")
    }


@pytest.mark.parametrize(
    "tests",
    [
        ("tests/agent/test_agent_live.py", "-k", "outlive or second_agent"),
        (
            "tests/adapters/cri/test_cri_places.py",
            "tests/cli/test_near_cli.py",
            "tests/cli/test_run_alone.py",
        ),
    ],
    ids=lambda tests: Path(tests[0]).stem,
)
def test_nothing_of_the_machines_is_touched(tests: tuple[str, ...]) -> None:
    skip_unless_an_agent_can_run()
    hostile = {
        "CONTAINER_RUNTIME_ENDPOINT": f"unix://{SOCKETS[0]}",
        "KUBECONFIG": "/var/lib/kubelet/kubeconfig",
        "NODE_NAME": "the-machine",
        "PINFOLD_SOCKET": "/run/pinfold/pinfold.sock",
        "PINFOLD_RUN_DIR": "/run/pinfold",
    }
    done = subprocess.run(
        [*OWN_MOUNTS, sys.executable, "-m", "tests.house.test_own_places", *tests],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300 * PATIENCE,
        env={**os.environ, **hostile},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["connected"] == []
    assert found["changed"] == []
    assert found["status"] == 0, found["said"]


def test_a_run_that_leaves_something_there_fails(tmp_path: Path) -> None:
    """On a machine with such a place, and on one without."""
    skip_unless_an_agent_can_run()
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_it():\n"
        "    Path('/run/pinfold').mkdir(exist_ok=True)\n"
        "    Path('/run/pinfold/left').touch()\n"
    )
    for make in ("true", "mkdir /run/pinfold"):
        script = f"mount -t tmpfs none /run && {make} && exec {sys.executable} -m pytest -q {{}}"
        done = subprocess.run(
            [*OWN_MOUNTS, "sh", "-c", script.format(tmp_path / "test_it.py")],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode != 0
        assert "a test has left in a well-known place: /run/pinfold" in done.stdout + done.stderr


def test_a_place_that_its_owner_takes_away_meanwhile_has_nothing_of_the_tests(
    tmp_path: Path,
) -> None:
    left = tmp_path / "there" / "left"
    left.parent.mkdir()
    left.touch()
    own = OwnPlaces(covered=[tmp_path / "gone", left.parent])
    assert own.touched() == [str(left)]


def test_all_tests_call_kubectl_in_one_way() -> None:
    """It remembers what servers offer in a well-known place, unless it is given another."""
    calls = re.compile(r'(?:run|Popen|_exec)\(\s*\[?\s*"kubectl"')
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if calls.search(path.read_text())
    ]
    assert found == ["tests/scenes/kubectl.py"]


def test_the_places_are_those_of_the_code() -> None:
    """A new default below ``/run``, ``/var`` or ``/etc`` has to be thought of here."""
    looked_at = ("/run/containers", "/run/systemd", "/var/log/pods")
    known = (*PLACES, SHIMS, *looked_at)
    found = {
        (str(path.relative_to(ROOT)), match[1])
        for path in (ROOT / "src").rglob("*.py")
        for match in re.finditer(r'"(?:unix://)?(/(?:etc|run|var)/[\w./-]+)', path.read_text())
    }
    assert found
    ends = tuple(place.replace("/var/run/", "/run/") for place in known)
    strange = [one for one in found if not one[1].replace("/var/run/", "/run/").startswith(ends)]
    assert strange == []
    assert "PINFOLD_SOCKET" in VARIABLES


if __name__ == "__main__":
    main()
