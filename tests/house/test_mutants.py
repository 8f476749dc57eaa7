"""``make mutants``: the changes it makes, whom it asks, whom it believes, and what it leaves."""

from __future__ import annotations

import ast
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import contained
from mutants.__main__ import FOLDERS, main
from mutants.hunt import equivalents, population
from mutants.nearest import Imports
from mutants.operators import mutants_of
from mutants.workspace import culprit

from tests.roots import ROOT
from tests.scenes.waiting import wait_until


def changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants_of(source.encode())]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a < b <= c", ["a <= b <= c", "a >= b <= c", "a < b < c", "a < b > c"]),
        ("a is not None", ["a is None"]),
        ("a not in b", ["a in b"]),
        ("a and b", ["a or b", "b", "a"]),
        ("a or b or c", ["a and b and c", "b or c", "a or c", "a or b"]),
        ("not a", ["a"]),
        ("a + 1", ["a - 1", "2"]),
        ("a | b", ["a & b"]),
        ("'text' + a", ["''"]),
        ("f(True)", ["pass", "False"]),
        ("await_ = x.f('')", ["'~'"]),
        ("x.y = z", ["pass"]),
        ("x += 2", ["pass", "x -= 2", "3"]),
        ("a if b else c", ["not b"]),
        ("if a:\n  f(b)", ["not a", "pass"]),
        ("[a for a in b if a]", ["not a"]),
        ("for a in b:\n  continue", ["break"]),
        ("def f(a, b=1, *, c='d'):\n  return a", ["''", "2", "return None"]),
        ("def f():\n  raise E(2) from None", ["pass", "3"]),
        ("def f():\n  return False", ["True"]),
        ("def f():\n  return", ["pass"]),
        ("A: Final = 3", ["4"]),
    ],
)
def test_changes(source: str, after: list[str]) -> None:
    assert [change.partition(" -> ")[2] for change in changes(source)] == after


@pytest.mark.parametrize(
    "source",
    [
        '"""Text."""',
        "def f(a: 'T | None') -> 'T':\n  '''Text.'''",
        "assert a is not None, 'text'",
        "f'{a + 1} text'",
        "import a",
        "@dataclass(frozen=True)\nclass A(B, tag=True):\n  b: int",
        "if TYPE_CHECKING:\n  f(1)",
        "__all__ = ['a']",
        "x = cast('int', y)",
        "x = isinstance(y, A | B)",
        "SECONDS = 2.5",
        "A = B | None",
        "def f():\n  return None",
    ],
)
def test_what_no_test_can_tell_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_a_mutant_differs_in_its_place_only() -> None:
    source = (
        "# Ä\nclass A:\n    def f(self, x):\n        return g('ä', x == 1,\n            y)  # end\n"
    )
    found = {mutant.change: mutant.source.decode() for mutant in mutants_of(source.encode())}
    assert found["A.f: x == 1 -> x != 1"] == source.replace("x == 1", "(x != 1)")
    assert found["A.f: 'ä' -> ''"] == source.replace("'ä'", "('')")
    # What follows keeps its line.
    assert found["A.f: return g('ä', x == 1, y) -> return None"] == source.replace(
        "return g('ä', x == 1,\n            y)", "return None\n"
    )


def test_all_mutants_of_real_modules_are_python_and_differ() -> None:
    for name in ("core/values/cpuset.py", "adapters/nri/frames.py"):
        source = (ROOT / "src" / "pinfold" / name).read_bytes()
        same = ast.dump(ast.parse(source))
        mutants = mutants_of(source)
        assert len(mutants) > 50
        assert {ast.dump(ast.parse(mutant.source)) == same for mutant in mutants} == {False}


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "tests/a.py::one PASSED [ 1%]\ntests/a.py::two[x y] FAILED [ 2%]\n",
            "tests/a.py::two[x y]",
        ),
        ("tests/a.py::one ERROR  [ 1%]\n", "tests/a.py::one"),
        (
            "tests/a.py::one PASSED [ 1%]\ntests/a.py::two \n! KeyboardInterrupt !\n",
            "tests/a.py::two",
        ),
        (
            "_____ ERROR collecting tests/b.py _____\nERROR tests/b.py - NameError: x\n",
            "tests/b.py",
        ),
        ("ImportError while loading conftest '/x/tests/conftest.py'.\n", "/x/tests/conftest.py"),
        ("collecting ... \n", "the first"),
    ],
)
def test_where_pytest_stopped(output: str, told: str) -> None:
    assert culprit(output, "the first") == told


def test_a_pytest_that_cannot_run_is_no_verdict() -> None:
    with pytest.raises(RuntimeError, match=r"did not run the tests, and says:\nERROR: usage"):
        culprit("ERROR: usage: pytest\n")


# ----------------------------------------------------------------------- a small project


TREE = {
    "pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["tests"]\nnorecursedirs = ["far"]\n',
    "mutants/equivalents.toml": "",
    "src/pack/__init__.py": "",
    "src/pack/core/__init__.py": "",
    "src/pack/core/sum.py": "def add(a, b):\n    return a + b\n",
    "src/pack/core/user.py": (
        "from pack.core.sum import add\n\n\ndef two(a):\n    return add(a, a)\n"
    ),
    "src/pack/core/lone.py": "def unheard(a):\n    return a * 3\n",
    "tests/__init__.py": "",
    "tests/scene.py": "from pack.core import user\n",
    "tests/core/__init__.py": "",
    "tests/core/test_lone.py": "def test_nothing():\n    pass\n",
    "tests/test_by_scene.py": (
        "from tests import scene\n\n\ndef test_it():\n    assert scene.user.two(2) == 4\n"
    ),
    "tests/test_sum.py": (
        "from pack.core.sum import add\n\n\ndef test_add():\n    assert add(1, 0) == 1\n"
        "\n\ndef test_more():\n    assert add(1, 2) == 3\n"
    ),
    "tests/test_none.py": "def test_nothing():\n    pass\n",
    "tests/far/test_add.py": "from pack.core.sum import add\n",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it starts sooner
    for name, text in TREE.items():
        write(tmp_path / "project" / name, text)
    return tmp_path / "project"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_the_nearest_tests_come_first(tree: Path) -> None:
    imports = Imports(tree, frozenset(["far"]))
    order = imports.order("pack.core.sum")
    assert order.near == ("tests/test_sum.py", "tests/core/test_lone.py")
    assert order.others == ("tests/test_by_scene.py", "tests/test_none.py")
    assert imports.order("pack.core.user").near[0] == "tests/test_by_scene.py"


def test_who_is_killed_by_whom_and_who_survives(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["core", "--seed", "1", f"--tree={tree}"]) == 1
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert first == "seed 1: 6 of 6 mutants"
    told = {line.rpartition(" (")[0] for line in lines}
    sums, users = "src/pack/core/sum.py:2", "src/pack/core/user.py:5"
    assert told == {
        f"killed   {sums} add: a + b -> a - b by tests/test_sum.py::test_more",
        f"killed   {sums} add: return a + b -> return None by tests/test_sum.py::test_add",
        f"killed   {users} two: return add(a, a) -> return None by tests/test_by_scene.py::test_it",
        "SURVIVED src/pack/core/lone.py:2 unheard: return a * 3 -> return None",
        "SURVIVED src/pack/core/lone.py:2 unheard: a * 3 -> a // 3",
        "SURVIVED src/pack/core/lone.py:2 unheard: 3 -> 4",
    }
    assert last == "3 of 6 killed: 50%"
    assert {name: (tree / name).read_text(encoding="utf-8") for name in TREE} == TREE
    assert sorted(path.name for path in tree.iterdir()) == [
        "mutants",
        "pyproject.toml",
        "src",
        "tests",
    ]


def test_all_others_are_asked_when_the_nearest_notice_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = "from pack.core.sum import add\n\n\ndef test_add():\n    assert add\n"
    write(tree / "tests" / "test_sum.py", weak)
    arguments = ["core", "--only", "a + b -> a - b", f"--tree={tree}"]
    assert main(arguments) == 0
    assert "by tests/test_by_scene.py::test_it" in capsys.readouterr().out
    assert main([*arguments, "--near"]) == 1
    assert "SURVIVED" in capsys.readouterr().out


def test_who_is_told_to_end_leaves_nothing_running(tree: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = f"""
import fcntl, time
import pack.core.sum

def test_it():
    with open({str(lock)!r}, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("here", file=file, flush=True)
        time.sleep(1000)
"""
    write(tree / "tests" / "test_sum.py", script)
    command = [sys.executable, "-m", "mutants", "core", f"--tree={tree}", "--only=sum.py"]
    with subprocess.Popen([*command, "--jobs=1"], cwd=ROOT, stdout=subprocess.DEVNULL) as program:
        try:
            wait_until(lambda: lock.exists() and lock.read_text() == "here\n", 60)
        finally:
            program.terminate()
    assert program.returncode == 128 + signal.SIGTERM
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_equivalent_ones_are_not_drawn(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = ("a * 3 -> a // 3", "return a * 3 -> return None", "3 -> 4")
    file = "src/pack/core/lone.py"
    text = "".join(
        f'[[equivalent]]\nfile = "{file}"\nchange = "unheard: {it}"\nreason = "-"\n'
        for it in entries
    )
    write(tree / "mutants" / "equivalents.toml", text)
    with pytest.raises(SystemExit):
        main(["core", "--only", "lone", f"--tree={tree}"])
    assert "no mutant is left to draw from" in capsys.readouterr().err
    # The same change of another file is none of them.
    write(tree / "src" / "pack" / "core" / "other.py", TREE[file])
    write(tree / "tests" / "test_other.py", "from pack.core import other\n\n\ndef test(): ...\n")
    assert main(["core", "--near", "--jobs", "1", "--only", "other.py", f"--tree={tree}"]) == 1
    assert "0 of 3 killed" in capsys.readouterr().out


def test_who_fails_anyway_or_by_chance_kills_nobody(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tree / "tests" / "core" / "test_lone.py",
        f"""
from pathlib import Path

from pack.core.lone import unheard


def test_by_chance():
    turns = Path({str(tmp_path / "turns")!r})
    turns.write_text((turns.read_text() if turns.exists() else "") + "x")
    assert len(turns.read_text()) != 1


def test_broken():
    assert unheard(1) == 5
""",
    )
    assert main(["core", "--only", "lone", "--sample", "1", "--jobs", "1", f"--tree={tree}"]) == 1
    _, verdict, *told, last = capsys.readouterr().out.splitlines()
    assert verdict.startswith("SURVIVED")
    assert told == [
        "not asked, as it fails without a mutant: tests/core/test_lone.py::test_broken",
        "not believed, as it fails now and then: tests/core/test_lone.py::test_by_chance",
    ]
    assert last == "0 of 1 killed: 0%"


def test_a_module_that_cannot_be_imported_is_noticed(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tree / "src/pack/core/sum.py", "def add(a, b):\n    return a + b\n\n\nM = add(2, '' or 3)\n"
    )
    assert main(["core", "--only", "'' -> '~'", f"--tree={tree}"]) == 0
    assert "killed   src/pack/core/sum.py:5 module: '' -> '~' by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["cores"], "src/pack/cores is no folder"), (["--only", "?", "core"], "no mutant is left")],
)
def test_wrong_usage(
    tree: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, f"--tree={tree}"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# --------------------------------------------------------------------- nothing stays


def run(patience: float, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, contained.__file__, str(patience), sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )


DAEMON = """
import os, sys, time
read, write = os.pipe()
if os.fork():
    os.wait()
    os.read(read, 1)
    sys.exit(3)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.write(write, b".")
time.sleep(1000)
"""


def test_a_daemon_is_gone_with_its_command() -> None:
    done = run(100, DAEMON)
    assert done.returncode == 3
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_an_end_is_heard_of_by_whoever_was_started_with_sigchld_blocked() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        assert run(20, "raise SystemExit(3)").returncode == 3
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_orphans_that_end_are_reaped_while_the_command_goes_on() -> None:
    script = """
import os, sys, time
read, write = os.pipe()
if not os.fork():
    if not os.fork():
        os.write(write, b"%d" % os.getpid())
        os._exit(0)
    os._exit(0)
os.wait()
orphan = int(os.read(read, 20))
while os.path.exists(f"/proc/{orphan}"):
    time.sleep(0.01)
print("gone")
"""
    assert run(20, script).stdout == "gone\n"


def test_one_that_says_nothing_is_interrupted_and_tells_where_it_was() -> None:
    script = """
import time
print("started", flush=True)
try:
    time.sleep(1000)
except KeyboardInterrupt:
    print("tidied up", flush=True)
"""
    done = run(2, script)
    assert (done.returncode, done.stdout) == (contained.SILENT, "started\ntidied up\n")


# -------------------------------------------------------------------- the project itself


def test_every_equivalent_is_a_change_that_can_be_made_and_has_a_reason() -> None:
    known = equivalents(ROOT)
    made = {placed.key for placed in population(ROOT, FOLDERS)}
    assert sorted(known.keys() - made) == []
    assert [change for change, reason in known.items() if len(reason) < 20] == []
