"""The wheel as users install programs: ``pipx``, ``uv tool`` and ``uvx``, each in its own place."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pinfold import __version__
from tests.roots import ROOT

VERSION = f"pinfold, version {__version__}\n"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pipx and uv, of the index that pip asks."""
    home = tmp_path_factory.mktemp("tools")
    venv.create(home, with_pip=True, symlinks=True)
    python = str(home / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "pipx", "uv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the index has no pipx or no uv: {done.stderr.splitlines()[-1]}")
    return home / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*build, str(folder), str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built


class Installer:
    """Runs a tool, with all that it writes below one folder."""

    def __init__(self, tools: Path, home: Path) -> None:
        self._tools, self.home = tools, home
        self._environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PIPX_HOME": str(home / "pipx"),
            "PIPX_BIN_DIR": str(home / "bin"),
            "PIPX_MAN_DIR": str(home / "man"),
            "UV_TOOL_DIR": str(home / "uv"),
            "UV_TOOL_BIN_DIR": str(home / "bin"),
            "UV_PYTHON": sys.executable,
            "UV_NO_PROGRESS": "1",
        }

    def run(self, *words: str | Path, status: int = 0) -> str:
        """Run a program; what it printed, and where it fails what it said."""
        done = subprocess.run(
            words,
            env=self._environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout if not status else done.stderr


@pytest.fixture
def installer(tools: Path, tmp_path: Path) -> Installer:
    return Installer(tools, tmp_path)


def test_uvx_runs_it_without_installing_it(installer: Installer, wheel: Path) -> None:
    assert installer.run("uvx", "--from", wheel, "pinfold", "--version") == VERSION
    plan = ("plan", "--machine", "2s8c2t", "--policy", "static", "--reserved-cpus", "0")
    told = installer.run("uvx", "--from", wheel, "pinfold", *plan, ROOT / "examples" / "pods")
    assert "admitted" in told


def test_uv_installs_it_as_a_tool(installer: Installer, wheel: Path) -> None:
    installer.run("uv", "tool", "install", wheel)
    program = installer.home / "bin" / "pinfold"
    assert installer.run(program, "--version") == VERSION
    assert f"uv tool install --force '{wheel}[agent]'" in installer.run(program, "agent", status=2)
    installer.run("uv", "tool", "install", "--force", f"{wheel}[agent,cluster]")
    assert "not a pod" not in installer.run(program, "quota", "serve", "--help")


def test_pipx_installs_it_with_its_manual(installer: Installer, wheel: Path) -> None:
    installer.run("pipx", "install", wheel)
    program = installer.home / "bin" / "pinfold"
    assert installer.run(program, "--version") == VERSION
    assert (installer.home / "man" / "man1" / "pinfold-plan.1").exists()
    assert f"pipx install --force '{wheel}[agent]'" in installer.run(program, "agent", status=2)
    installer.run("pipx", "install", "--force", f"{wheel}[agent]")


def test_pipx_runs_it(installer: Installer, wheel: Path) -> None:
    assert installer.run("pipx", "run", "--spec", wheel, "pinfold", "--version") == VERSION
