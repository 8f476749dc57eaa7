"""Pods that mean no good, and what has to be true while they are there and afterwards."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from trial.crowd import manifest
from trial.node import Refused
from trial.observed import Processes
from trial.scene import Scene

_FLOOD: Final = "exec yes a-line-that-nobody-reads-and-that-fills-the-disk"
_STUBBORN: Final = "trap '' TERM INT HUP; while :; do sleep 0.1; done"
_FAMILY: Final = "i=0; while [ $i -lt 60 ]; do (setsid sleep 1000 &) ; i=$((i+1)); done; sleep 1000"
_SPAWNING: Final = "while :; do (setsid sh -c 'sleep 0.05' &); sleep 0.002; done"
_GREEDY: Final = "while :; do taskset -a -p ffffffff $$ >/dev/null 2>&1; sleep 0.01; done"
_ESCAPING: Final = """
(setsid sh -c "for f in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do
    echo \\$\\$ >\\$f
done; exec sleep 1000" &)
sleep 1000
"""
ESCAPE_PERIODS: Final = 15.0
"""Seconds in which a process that moved itself away has to be back, or gone."""

BAD_NAMES: Final = ("a/b", "../../x y", "A" * 300, "-x", "x" * 254, "é", ".")


def flood(scene: Scene) -> None:
    """A pod writes as fast as it can: what it may keep is bounded."""
    with scene.visitor("flood", _FLOOD):
        time.sleep(3)
        used = _bytes_below(scene.node.state)
        scene.check(used < 48 << 20, f"the state folder has grown to {used >> 20} MiB")


def _bytes_below(folder: Path) -> int:
    """The bytes of every file, in a folder whose files come and go meanwhile: logs rotate."""
    used = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                used += os.lstat(Path(parent) / name).st_size
    return used


def stubborn(scene: Scene) -> None:
    """A pod does not heed SIGTERM."""
    with scene.visitor("stubborn", _STUBBORN):
        time.sleep(0.5)


def family(scene: Scene) -> None:
    """A pod leaves daemons behind, each in a session of its own."""
    with scene.visitor("family", _FAMILY):
        time.sleep(0.5)


def spawning(scene: Scene) -> None:
    """A pod starts daemons without an end."""
    with scene.visitor("spawning", _SPAWNING, owns=0):
        time.sleep(1.5)


def greedy(scene: Scene) -> None:
    """A pod widens its own affinity all the time; the sampler sees whether that gives it a CPU."""
    with scene.visitor("greedy", _GREEDY):
        time.sleep(1.5)


def escaping(scene: Scene) -> None:
    """A pod's child moves itself into the root cgroup: it is brought back, or ended."""
    with scene.visitor("escaping", _ESCAPING, escapes=True):
        time.sleep(1)
        deadline = time.monotonic() + ESCAPE_PERIODS
        outside = ["?"]
        while outside and time.monotonic() < deadline:
            outside = [
                process.name
                for process in Processes(scene.crowd.trial).walk()
                if process.pod == "escaping" and _group(process.pid) == "/"
            ]
            time.sleep(0.2)
        scene.check(not outside, f"escaped, and nobody noticed: {', '.join(outside)}")


def short(scene: Scene) -> None:
    """Pods that end at once have succeeded, once each."""
    for number in range(5):
        name = f"short-{number}"
        pod = manifest(scene.crowd.trial, name, "exit 0", restartPolicy="Never")
        scene.node.ask("POST", "/v1/pods", pod)
    deadline = time.monotonic() + 30
    phases: set[str] = {"?"}
    while phases != {"Succeeded"} and time.monotonic() < deadline:
        pods = scene.node.pods()
        phases = {pods[f"short-{n}"]["phase"] for n in range(5)}
        time.sleep(0.05)
    scene.check(phases == {"Succeeded"}, f"pods that exit with 0 are {sorted(phases)}")
    for number in range(5):
        with suppress(Refused):
            scene.node.ask("DELETE", f"/v1/pods/default/short-{number}")


def names(scene: Scene) -> None:
    """Names that no API server would take are refused, and nothing is left of them."""
    for name in BAD_NAMES:
        for kind in ("name", "uid", "container"):
            pod = manifest(scene.crowd.trial, f"named-{len(name)}", "sleep 1000", owns=0)
            if kind == "container":
                pod["spec"]["containers"][0]["name"] = name
            else:
                pod["metadata"][kind] = name
            try:
                answer = scene.node.ask("POST", "/v1/pods", pod)
            except Refused as error:
                scene.check(error.status < 500, f"{kind} {name[:20]!r} gives {error}")
                continue
            # A uid may be any text that can name a cgroup; then it can go, too.
            ok = kind == "uid" and answer["phase"] != "Rejected"
            scene.check(ok, f"{kind} {name[:20]!r} was admitted")
            admitted = quote(pod["metadata"]["name"], safe="")
            scene.node.ask("DELETE", f"/v1/pods/default/{admitted}?grace=0")


def _group(pid: int) -> str:
    """A process's cgroup in the hierarchy of cpusets."""
    with suppress(OSError):
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:  # noqa: PTH123 - as short
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        v1 = [path for _, names, path in lines if "cpuset" in names.split(",")]
        v2 = [path for _, names, path in lines if not names]
        return (v1 or v2 or [""])[0]
    return ""
