"""The machine's kubectl, as tests call it: with a server, and a home, that it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scenes.waiting import PATIENCE

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One that keeps what it remembers (``~/.kube``) below ``home``.

    ``config`` is the kubeconfig of its server; None: it has none to ask.  Its plugins are looked
    for in ``plugins``, too.
    """

    home: Path
    config: Path | None = None
    plugins: Path | None = None

    def __call__(self, *words: str, given: str = "", status: int | None = 0) -> str:
        """What it says on both streams; it has to end with the status, None: with any."""
        done = self._run(words, given, subprocess.STDOUT)
        assert status is None or done.returncode == status, done.stdout
        return done.stdout

    def tried(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """What it says on each of its streams, and how it ends."""
        return self._run(words, given, subprocess.PIPE)

    def _run(
        self, words: tuple[str, ...], given: str, errors: int
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", *words],
            env={
                "HOME": str(self.home),
                "KUBECONFIG": str(self.config or os.devnull),
                "PATH": f"{self.plugins}:{os.environ['PATH']}"
                if self.plugins
                else os.environ["PATH"],
            },
            input=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            timeout=120 * PATIENCE,
        )


def kustomized(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What kubectl makes of a kustomization, by kind and name."""
    with tempfile.TemporaryDirectory(prefix="pinfold-test-home-") as home:
        built = Kubectl(Path(home))("kustomize", str(folder))
    found = [one for one in yaml.safe_load_all(built) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}
