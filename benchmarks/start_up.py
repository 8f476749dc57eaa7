"""Start-up: commands from outside, each turn beside one of ``python -c pass``.

What is told of a command is how often an empty program could have run meanwhile, in the same run
and the same mood of the machine.  The processes find compiled bytecode, as those of an installed
program do.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.agent_measuring import Detailed, detailed
from benchmarks.agent_scene import answer, scene
from benchmarks.measure import Result
from benchmarks.process import Scene, pods

TURNS: Final = 15
_PROGRAM: Final = str(Path(sysconfig.get_path("scripts")) / "pinfold")
_EMPTY: Final = (sys.executable, "-c", "pass")


def _seconds(command: tuple[str, ...], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return time.perf_counter() - began


def _turns(command: tuple[str, ...], environment: Mapping[str, str]) -> Detailed:
    _seconds(command, environment)
    empty, times = [], []
    for _ in range(TURNS):
        empty.append(_seconds(_EMPTY, environment))
        times.append(_seconds(command, environment))
    ratio = statistics.median(times) / statistics.median(empty)
    return detailed([1e9 * seconds for seconds in times], times_python_c_pass=ratio)


def _alone(*words: str, **variables: str) -> Result:
    """A command that asks nobody."""
    place = Scene(pods(10))
    return _turns((_PROGRAM, *words), {**place.environment, **variables})


def _plan() -> Result:
    place = Scene(pods(10))
    return _turns((_PROGRAM, *place.arguments), place.environment)


def _client(*words: str) -> Result:
    """A command that asks an agent, which has a pod on CPUs of its own."""
    place = Scene(pods(1))
    with scene() as node:
        file = node.new_file()
        node.apply(("stamp", str(file)), "1")
        answer(file)
        socket = str(node.agent.socket)
        return _turns((_PROGRAM, *words), {**place.environment, "PINFOLD_SOCKET": socket})


_COMPLETE: Final = {
    "_PINFOLD_COMPLETE": "bash_complete",
    "COMP_WORDS": "pinfold st",
    "COMP_CWORD": "1",
}

MEASURED: Final[dict[str, Callable[[], Result]]] = {
    "start.version": partial(_alone, "--version"),
    "start.completion": partial(_alone, **_COMPLETE),
    "start.topology": partial(_alone, "topology", "--machine", "2s16c2t"),
    "start.plan": _plan,
    "start.status": partial(_client, "status"),
    "start.status.json": partial(_client, "status", "-o", "json"),
    "start.explain": partial(_client, "explain", "pod/pod-2"),
    "start.logs": partial(_client, "logs", "pod/pod-2"),
}
