"""The chart of deploy/kubernetes, rendered by the real helm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.roots import ROOT

CHART: Final = ROOT / "deploy" / "kubernetes"
HELM: Final = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

Objects = dict[tuple[str, str], dict[str, Any]]
"""What is made, by kind and name."""

needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm, which there is none of for here")


def helm(home: Path, *words: str, status: int = 0) -> str:
    """What it says; it has to end with the status."""
    assert HELM is not None
    done = subprocess.run(
        [HELM, *words],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "KUBECONFIG": os.devnull},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def rendered(home: Path, *settings: str, namespace: str = "pinfold") -> Objects:
    """What the chart makes of some values, by kind and name."""
    words = [word for one in settings for word in ("--set-json", one)]
    text = helm(home, "template", "pinfold", str(CHART), "--namespace", namespace, *words)
    found = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def switches() -> list[str]:
    """The values that are off until they are set: ``nodeLabels``, ``page.enabled``."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return [name for name, value in values.items() if value is False] + [
        f"{name}.enabled"
        for name, value in values.items()
        if isinstance(value, dict) and value.get("enabled") is False
    ]
