"""Workloads of whole processes: ``pinfold plan``, start-up included, and its imports alone.

The processes find compiled bytecode, as those of an installed program do: the call that measuring
begins with has written it (to a folder of its own, so that no setting of ours gets in the way).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

_MACHINE: Final = "2s64c2t"
_CONFIG: Final = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0,1"
topologyManagerPolicy: best-effort
"""
_POD: Final = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  containers:
  - name: main
    image: example
    resources:
      requests: {{cpu: "{cpu}", memory: {memory}}}
      limits: {{cpu: "{cpu}", memory: {memory}}}
"""
_LOADED: Final = """\
import json, sys
before = set(sys.modules)
sys.argv = ["pinfold", *json.loads(sys.argv[1])]
from pinfold.cli import main
try:
    main()
except SystemExit as end:
    if end.code:
        raise
print("\\n" + json.dumps([name for name in sys.modules if name not in before]))
"""
_IMPORT: Final = """\
import importlib, sys, time
names = sys.argv[1].split(",")
start = time.perf_counter_ns()
for name in names:
    importlib.import_module(name)
print(time.perf_counter_ns() - start)
"""


class Scene:
    """A folder with a kubelet configuration and manifests, gone when nobody holds it."""

    def __init__(self, manifests: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pinfold-bench-")
        self.path = Path(self._folder.name)
        (self.path / "kubelet.yaml").write_text(_CONFIG)
        (self.path / "pods.yaml").write_text(manifests)

    @property
    def environment(self) -> dict[str, str]:
        """The process's environment."""
        without = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return without | {"PYTHONPYCACHEPREFIX": str(self.path / "bytecode")}

    @property
    def arguments(self) -> list[str]:
        """What ``pinfold`` is called with."""
        config = str(self.path / "kubelet.yaml")
        pods = str(self.path / "pods.yaml")
        return ["plan", "--machine", _MACHINE, "--kubelet-config", config, pods]


def pods(count: int, exclusive: int = 10) -> str:
    """Manifests of ``exclusive`` pods with four CPUs and ``count - exclusive`` with a few milli."""
    texts = [_POD.format(name=f"exclusive-{i}", cpu=4, memory="1Gi") for i in range(exclusive)]
    texts += [
        _POD.format(name=f"shared-{i}", cpu="10m", memory="1Mi") for i in range(count - exclusive)
    ]
    return "---\n".join(texts)


def _plan(manifests: str) -> Callable[[], object]:
    scene = Scene(manifests)
    program = str(Path(sysconfig.get_path("scripts")) / "pinfold")

    def work() -> object:
        command = [program, *scene.arguments]
        return subprocess.run(command, capture_output=True, check=True, env=scene.environment)

    return work


def _import() -> Callable[[], int]:
    """Import, in a fresh process, exactly what a plan of ten pods has loaded at its end."""
    scene = Scene(pods(10))
    output = _python(scene, _LOADED, json.dumps(scene.arguments))
    names: list[str] = json.loads(output.rsplit("\n", 2)[-2])
    text = ",".join(name for name in names if name != "__main__")
    return lambda: int(_python(scene, _IMPORT, text))


def _python(scene: Scene, program: str, argument: str) -> str:
    command = [sys.executable, "-c", program, argument]
    done = subprocess.run(
        command, capture_output=True, check=True, text=True, env=scene.environment
    )
    return done.stdout


WORKLOADS: Final[dict[str, Callable[[], Callable[[], object]]]] = {
    "plan.cold": lambda: _plan(pods(10)),
    "plan.10000": lambda: _plan(pods(10_000)),
}

OWN_CLOCK: Final[dict[str, Callable[[], Callable[[], int]]]] = {"import": _import}
