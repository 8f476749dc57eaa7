"""A copy of the tree in which mutants live, with a Python environment that knows no other."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mutants import contained

SECONDS_OF_SILENCE: Final = 240
"""No test takes as long; one that a mutant keeps in a loop does."""

_LEFT_OUT: Final = (".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
_OWN_WORLD: Final = (
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    # The numbers of init and of the kernel's first thread are taken, by nobody's parent.
    *("sh", "-c", 'sleep infinity & "$@"; exit "$?"', "init"),
)
"""A mutant that kills the wrong process, or mounts in the wrong place, does so in here only."""
_IS_ROOT: Final = os.geteuid() == 0
_END: Final = signal.SIGKILL if _IS_ROOT else signal.SIGTERM
"""unshare(1) hears no other, and takes its world with it; without one, what runs has to tidy up."""
_STARTED: Final = re.compile(
    r"^(tests/\S+\.py::.*?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL).*)?$", re.MULTILINE
)
_UNREADABLE: Final = re.compile(
    r"^ERROR (?:collecting )?(\S+\.py)|loading conftest '(.*)'", re.MULTILINE
)
_NOTHING_FAILED: Final = {0, 5}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of tests ended: with whom it failed, or None; ``silent`` where it never ended."""

    culprit: str | None
    silent: bool = False


class StoppedError(Exception):
    """No more tests are run here."""


class Workspace:
    """One copy; one command at a time."""

    def __init__(self, tree: Path, folder: Path) -> None:
        """Copy the tree into a folder and make the environment."""
        self.tree = folder / tree.name
        shutil.copytree(tree, self.tree, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        # Recordings that lie beside the project (``tests.roots.SHARED``).
        (folder / "shared").symlink_to(tree.parent / "shared")
        self._python = _environment(self.tree / ".venv")
        self._environ = {"PINFOLD_TEST_PATIENCE": "3", **os.environ}
        self._environ["PATH"] = f"{self._python.parent}{os.pathsep}{os.environ['PATH']}"
        self._environ.pop("PYTHONPATH", None)
        self._running: subprocess.Popen[str] | None = None
        self._stopped = False

    @contextmanager
    def changed(self, path: str, source: bytes) -> Iterator[None]:
        """The tree with another source at a path."""
        file = self.tree / path
        before = file.read_bytes()
        try:
            _write(file, source)
            yield
        finally:
            _write(file, before)

    def run(self, tests: Sequence[str], deselected: Sequence[str] = ()) -> Outcome:
        """Run tests in the given order, up to the first that fails; raises ``StoppedError``."""
        with subprocess.Popen(  # noqa: S603 - the tests of this project
            [
                *(_OWN_WORLD if _IS_ROOT else ()),
                *(sys.executable, contained.__file__, str(SECONDS_OF_SILENCE)),
                *(str(self._python), "-m", "pytest", "-vv", "--color=no", "--tb=no", "-x"),
                *("-p", "no:cacheprovider", "-p", "no:xdist"),
                *(f"--deselect={test}" for test in deselected),
                *tests,
            ],
            cwd=self.tree,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as self._running:
            if self._stopped:
                self._running.send_signal(_END)
            output = self._running.communicate()[0]
        if self._stopped:
            raise StoppedError
        status = self._running.returncode
        if status in _NOTHING_FAILED:
            return Outcome(None)
        # What is not even imported in time is told of the first that imports it.
        is_silent = status == contained.SILENT
        return Outcome(culprit(output, tests[0] if is_silent else None), silent=is_silent)

    def stop(self) -> None:
        """End what runs, from another thread; nothing runs any more."""
        self._stopped = True
        if self._running is not None:
            self._running.send_signal(_END)


def culprit(output: str, otherwise: str | None = None) -> str:
    """Where a run of pytest stopped: a test, or a file that it could not import.

    Raises:
        RuntimeError: it stopped somewhere else, and there is nothing to name ``otherwise``.
    """
    started = [
        match for match in _STARTED.finditer(output) if match[2] in {None, "FAILED", "ERROR"}
    ]
    if started:
        return started[-1][1].rstrip()
    if unreadable := _UNREADABLE.search(output):
        return unreadable[1] or unreadable[2]
    if otherwise is None:
        raise RuntimeError(f"pytest did not run the tests, and says:\n{output[-2000:]}")
    return otherwise


def _environment(at: Path) -> Path:
    """An environment that has what this one has, but the package from the copy."""
    subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(at)], check=True
    )
    here = sysconfig.get_paths()
    there = sysconfig.get_paths(vars={"base": str(at), "platbase": str(at)})
    # In a folder that a .pth file names no such files are looked for: the package that is
    # installed from the working tree stays out.
    (Path(there["purelib"]) / "mutants.pth").write_text(
        f"{at.parent / 'src'}\n{here['purelib']}\n", encoding="utf-8"
    )
    python = Path(there["scripts"]) / "python"
    for script in Path(here["scripts"]).iterdir():
        text = script.read_bytes() if script.is_file() else b""
        if text.startswith(f"#!{sys.executable}\n".encode()):
            copy = python.with_name(script.name)
            copy.write_bytes(text.replace(sys.executable.encode(), bytes(python), 1))
            copy.chmod(0o755)
    return python


def _write(file: Path, source: bytes) -> None:
    file.write_bytes(source)
    # Two sources of one second and one length are the same to Python's cache.
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
