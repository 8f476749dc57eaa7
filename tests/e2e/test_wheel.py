"""The built wheel, installed in a fresh environment, does what the documents say.

Run by ``make e2e``.  Nothing of the checkout is on the path of the installed program.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.roots import ROOT
from tests.scenes.console import commands, matches, run

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment with the locked versions and the wheel."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    uv = shutil.which("uv")
    venv.create(home, with_pip=uv is None, symlinks=True)
    python = home / "bin" / "python"
    install: list[str | Path] = (
        [uv, "pip", "install", "--quiet", "--python", python]
        if uv
        else [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    )
    locked = ROOT / "requirements.txt"
    subprocess.run([*install, "--require-hashes", "-r", locked], check=True)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    # A report is drawn by an extra, which is not among the locked ones.
    subprocess.run([*install, f"{wheel}[report]"], check=True)
    return home / "bin"


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def output(program: Path, *arguments: str | Path, cwd: Path | None = None) -> str:
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd or "/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {re.sub(r"-[\d.]+\.", ".", top) for top in tops} == {
        "pinfold",
        "pinfold.data",
        "pinfold.dist-info",
    }
    assert "pinfold/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name]


def test_what_was_made_of_the_commands_is_where_it_is_looked_for(programs: Path) -> None:
    """Manual pages, and what shells complete; as the installed program makes them itself."""
    share = programs.parent / "share"
    for words in ((), ("plan",), ("state", "check")):
        page = share / "man" / "man1" / f"{'-'.join(('pinfold', *words))}.1"
        assert page.read_text() == output(programs / "pinfold", "man", *words)
    for shell, place in {
        "bash": "bash-completion/completions/pinfold",
        "zsh": "zsh/site-functions/_pinfold",
        "fish": "fish/vendor_completions.d/pinfold.fish",
    }.items():
        script = output(programs / "pinfold", "completion", shell)
        assert (share / place).read_text() == script
    told = "from pinfold.completion.table import read_table; print(read_table() == {})"
    made = "__import__('pinfold.cli.completion_table', fromlist='table').table()"
    assert output(programs / "python", "-c", told.format(made)).strip() == "True"


def test_a_tab_loads_no_command(programs: Path) -> None:
    """The table of the wheel is enough, however many commands there are."""
    loaded = output(
        programs / "python",
        "-c",
        "import sys; sys.argv = ['pinfold', '__complete', 'plan', '--po']\n"
        "from pinfold.__main__ import start; start()\n"
        "print({name for name in sys.modules} & {'click', 'pinfold.cli', 'yaml', 'asyncio'})",
    )
    assert loaded.splitlines()[-2:] == [":4", "set()"]


def test_the_package_is_not_that_of_the_checkout(programs: Path) -> None:
    where = output(programs / "python", "-c", "import pinfold; print(pinfold.__file__)").strip()
    assert Path(where).is_relative_to(programs.parent)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of(document: Path, programs: Path, scene: Path) -> None:
    found = list(commands(document.read_text()))
    for command in found:
        done = run(command, scene, programs)
        where = f"{document.name}:{command.line}: {command.text}"
        assert done.returncode == command.status, f"{where}\n{done.stdout}"
        assert matches(command.output, done.stdout), f"{where}\n{done.stdout}"


def topology_here(programs: Path) -> dict[str, Any]:
    text = output(programs / "pinfold", "topology", "-o", "json")
    return dict(json.loads(text))


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="needs lscpu")
def test_this_machine_is_what_lscpu_says(programs: Path) -> None:
    """The live topology: same online CPUs, and the same cores, sockets and nodes by grouping."""
    rows = [
        line.split(",")
        for line in subprocess.run(
            ["lscpu", "-p=CPU,CORE,SOCKET,NODE"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if line and not line.startswith("#")
    ]
    ours = [row for row in topology_here(programs)["cpus"] if row["online"]]
    assert [row["cpu"] for row in ours] == sorted(int(row[0]) for row in rows)
    for position, field in enumerate(("core", "socket", "numa"), start=1):
        theirs: dict[str, set[int]] = {}
        for row in rows:
            theirs.setdefault(row[position], set()).add(int(row[0]))
        if "" in theirs:  # lscpu leaves the column empty where the kernel has no NUMA nodes
            continue
        mine: dict[object, set[int]] = {}
        for row in ours:
            mine.setdefault(row[field], set()).add(row["cpu"])
        assert sorted(map(sorted, mine.values())) == sorted(map(sorted, theirs.values())), field


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/online").exists(), reason="needs sysfs")
def test_a_capture_of_this_machine_is_this_machine(programs: Path, tmp_path: Path) -> None:
    output(programs / "pinfold", "capture", "-o", tmp_path / "node.tar.xz")
    text = output(
        programs / "pinfold", "topology", "--machine", tmp_path / "node.tar.xz", "-o", "json"
    )
    captured, live = json.loads(text), topology_here(programs)
    for field in ("cpus", "numa", "sockets", "l3", "cores", "kubelet"):
        assert captured[field] == live[field], field
