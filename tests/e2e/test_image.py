"""The image of the agent, built of its Containerfile by a real builder, and run.

The base image is a Debian made here, as no registry is needed for that; pip takes packages from
the index that it is configured for on this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold import __version__
from tests.roots import ROOT

BASE = "localhost/pinfold-test-base"
IMAGE = "localhost/pinfold-test"
_PACKAGES = "python3,python3-venv,python-is-python3"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("buildah") is None, reason="needs buildah"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap"),
]


class Builder:
    """Buildah, with a storage of its own, which is gone at the end."""

    def __init__(self, storage: Path) -> None:
        self._storage = storage

    def __call__(self, *words: str | Path) -> str:
        """Run it; what it printed."""
        done = subprocess.run(
            [
                *("buildah", "--root", self._storage / "root", "--runroot", self._storage / "run"),
                *words,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    storage = tmp_path_factory.mktemp("storage")
    build = Builder(storage)
    yield build
    build("rm", "--all")
    build("rmi", "--all", "--force")
    # The driver overlay mounts its folder onto itself.
    subprocess.run(["umount", storage / "root" / "overlay"], capture_output=True, check=False)
    shutil.rmtree(storage)


@pytest.fixture(scope="module")
def base(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Debian with Python, and nothing else."""
    tree = tmp_path_factory.mktemp("debian")
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    suite = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not suite:
        pytest.skip("needs Debian, of which the base image is made")
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, tree, _mirror()],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(tree / "var/cache/apt")
    container = builder("from", "scratch")
    builder("add", "--quiet", container, tree, "/")
    builder("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(tree)
    return BASE


def _mirror() -> str:
    """Where apt takes packages from on this machine."""
    for file in (*Path("/etc/apt").glob("sources.list.d/*.sources"), Path("/etc/apt/sources.list")):
        if file.exists():
            found = re.search(r"^(?:URIs:|deb\b.*?)\s*(\w+://\S+)", file.read_text(), re.MULTILINE)
            if found:
                return found[1]
    pytest.skip("apt's sources name no mirror")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options with which pip in the build asks the index that pip asks here."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(?:global|:env:|install)\.(\S+?)='(.*)'$", told, re.MULTILINE):
        # What the environment says comes first in the list, and counts.
        found.setdefault(name, value.replace("\\n", " "))
    file = tmp_path_factory.mktemp("pip") / "pip.conf"
    file.write_text(
        "\n".join(["[global]", *(f"{name} = {value}" for name, value in found.items())])
    )
    named = {
        Path(word.removeprefix("file://")) for value in found.values() for word in value.split()
    }
    # What an index that is a folder links to is beside it.
    named = {path.parent if path.name == "simple" else path for path in named}
    # The file of certificates may be a link to one elsewhere: as it is read here.
    places = sorted({path for path in named if path.is_absolute() and path.exists()})
    mounts = [f"--volume={path.resolve()}:{path}:ro" for path in places]
    return [f"--volume={file}:/etc/pip.conf:ro", *mounts]


@pytest.fixture(scope="module")
def image(builder: Builder, base: str, index: list[str]) -> str:
    builder(
        *("bud", "--isolation", "chroot", "--layers=false", "--pull-never", *index),
        *("--build-arg", f"PYTHON={base}", "--build-arg", f"VERSION={__version__}"),
        *("--tag", IMAGE, "--file", ROOT / "deploy" / "Containerfile", ROOT),
    )
    return IMAGE


@pytest.fixture(scope="module")
def container(builder: Builder, image: str) -> str:
    return builder("from", "--pull-never", image)


def test_the_image_runs(builder: Builder, container: str) -> None:
    def run(*words: str) -> str:
        return builder("run", "--isolation", "chroot", *words)

    assert run(container, "pinfold", "--version") == f"pinfold, version {__version__}"
    assert "until SIGTERM" in run(container, "pinfold", "agent", "--help")
    examples = f"--volume={ROOT / 'examples'}:/examples:ro"
    plan = run(
        *(examples, container, "pinfold", "plan", "--machine", "2s8c2t"),
        *("--kubelet-config", "/examples/kubelet.yaml", "/examples/pods", "-o", "json"),
    )
    assert json.loads(plan)["pods"]


def test_who_is_not_root_can_plan(builder: Builder, container: str) -> None:
    told = builder(
        *("run", "--isolation", "chroot", "--user", "65534:65534", container),
        *("pinfold", "topology", "--machine", "2s4c2t"),
    )
    assert "2 sockets" in told


def test_there_is_nothing_that_installs(builder: Builder, container: str) -> None:
    told = builder(
        *("run", "--isolation", "chroot", container, "sh", "-c"),
        "find / -xdev -type d -path '*-packages/*' -prune -print"
        " | grep -E '/(pip|hatchling|grpc_tools)$';"
        " ls -d /source /wheels 2>/dev/null || true",
    )
    assert told == ""


def test_labels_and_size(builder: Builder, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(builder("inspect", "--type", "image", image))
    config = told["OCIv1"]["config"]
    labels = {
        name.rpartition(".")[2]: value
        for name, value in config["Labels"].items()
        if name.startswith("org.opencontainers.image.")
    }
    assert labels["title"] == "pinfold"
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert labels["description"]
    assert config["Entrypoint"] == ["pinfold"]
    assert config["Cmd"] == ["agent"]
    images = json.loads(builder("images", "--json"))
    sizes = {name: one["size"] for one in images for name in one["names"] or ()}
    with capsys.disabled():
        print(f"\nimages: {sizes}")  # noqa: T201 - who runs the tests wants to know
