"""What is done to an agent, its helpers, its disk and its machine; each fault is a function."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from trial import hostile, moves
from trial.damage import CONTAINER_FILES, copied, flip_many, hurt, put_back
from trial.node import READY, NoAnswerError, Refused
from trial.observed import born, online, present
from trial.scene import Scene, SkippedFault

_POD_NAME: Final = re.compile(rb'"pod_name" ?: ?"([^"]*)"')


# ------------------------------------------------------------------------------- kills and stops


def kill_agent(scene: Scene) -> None:
    """SIGKILL to the agent while pods come and go."""
    with scene.crowd.coming_and_going():
        time.sleep(scene.rng.uniform(0, 1.5))
        scene.node.kill()
        scene.start()
        time.sleep(scene.rng.uniform(0, 0.5))


def kill_while_starting(scene: Scene) -> None:
    """SIGKILL to an agent that is starting, several times in a row."""
    with scene.crowd.coming_and_going():
        time.sleep(scene.rng.uniform(0, 0.5))
        for _ in range(3):
            scene.node.kill()
            scene.node.process = scene.node.launch()
            time.sleep(scene.rng.uniform(0.1, 1.2))
        scene.node.kill()
        scene.start()


def kill_supervisor(scene: Scene) -> None:
    """SIGKILL to what stands over a container: the container runs on."""
    with scene.crowd.coming_and_going():
        time.sleep(scene.rng.uniform(0, 0.5))
        _signal_supervisor(scene, signal.SIGKILL)
        time.sleep(scene.rng.uniform(0, 0.5))


def kill_supervisor_and_agent(scene: Scene) -> None:
    """Both, in either order, with little between."""
    with scene.crowd.coming_and_going():
        time.sleep(scene.rng.uniform(0, 1))
        ends: list[Callable[[], object]] = [
            scene.node.kill,
            lambda: _signal_supervisor(scene, signal.SIGKILL),
        ]
        scene.rng.shuffle(ends)
        for end in ends:
            end()
            time.sleep(scene.rng.choice([0, 0.005, 0.05]))
        scene.start()


def stop_agent(scene: Scene) -> None:
    """SIGSTOP to the agent in the midst of things, for up to eleven seconds."""
    with scene.crowd.coming_and_going():
        time.sleep(scene.rng.uniform(0, 0.5))
        process = scene.node.process
        if process is not None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(scene.rng.choice([0.3, 1, 2, 11]))
            process.send_signal(signal.SIGCONT)
        time.sleep(0.3)


def stop_supervisor(scene: Scene) -> None:
    """SIGSTOP to a supervisor while the agent is killed and started."""
    with scene.crowd.coming_and_going():
        pid = _signal_supervisor(scene, signal.SIGSTOP)
        time.sleep(scene.rng.uniform(0, 1))
        scene.node.kill()
        scene.start()
        if pid is not None:
            with suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def stop_container(scene: Scene) -> None:
    """SIGSTOP to the main process of a pod that is then deleted."""
    known = [(name, one.main) for name, one in scene.crowd.wanted.items() if one.main]
    name, main = scene.rng.choice(known)
    with suppress(OSError):
        os.kill(main[0], signal.SIGSTOP)
    scene.crowd.drop(name)
    scene.check(name not in scene.crowd.unsure, f"{name} is stopped, and its deletion unanswered")
    scene.see_gone(name)


def _signal_supervisor(scene: Scene, number: int) -> int | None:
    pids = sorted(scene.node.supervisors())
    if not pids:
        return None
    pid = scene.rng.choice(pids)
    with suppress(OSError):
        os.kill(pid, number)
    return pid


# --------------------------------------------------------------------------- machine and disk


def hotplug(scene: Scene) -> None:
    """The last CPU goes and comes back; now and then the agent is killed meanwhile."""
    last = max(present())
    switch = Path(f"/sys/devices/system/cpu/cpu{last}/online")
    if last == 0 or not os.access(switch, os.W_OK) or online() != present():
        raise SkippedFault("no CPU here that can be taken offline")
    try:
        with scene.crowd.coming_and_going():
            time.sleep(scene.rng.uniform(0, 0.5))
            try:
                switch.write_text("0", encoding="ascii")
            except OSError as error:
                raise SkippedFault(f"CPU {last} does not go offline: {error.strerror}") from None
            time.sleep(scene.rng.uniform(0.5, 4))
            if scene.rng.random() < 0.5:
                scene.node.kill()
                scene.start()
            time.sleep(scene.rng.uniform(0, 0.5))
            switch.write_text("1", encoding="ascii")
            time.sleep(scene.rng.uniform(0, 0.5))
    finally:
        switch.write_text("1", encoding="ascii")


def full_disk(scene: Scene) -> None:
    """No byte is left where the record is: every request is answered, and what is deleted goes."""
    if not scene.has_own_disk:
        raise SkippedFault("no small disk could be mounted")
    filler = scene.node.disk / "filler"
    unanswered = scene.crowd.unanswered
    try:
        _fill(filler)
        with scene.crowd.coming_and_going():
            time.sleep(3)
            _fill(filler)
            time.sleep(1)
        name = scene.rng.choice(sorted(scene.crowd.wanted))
        scene.crowd.drop(name)
        answered = scene.crowd.unanswered == unanswered
        scene.check(answered, "with a full disk, a request was not answered")
    finally:
        filler.unlink(missing_ok=True)


def _fill(file: Path) -> None:
    with file.open("ab", buffering=0) as out:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while out.write(bytes(size)):
                    pass


def damaged_container(scene: Scene) -> None:
    """A file of one container is damaged while the agent is dead."""
    scene.node.kill()
    folders = sorted((scene.node.state / "containers").glob("[0-9a-f]*"))
    folders = [folder for folder in folders if (folder / "spec.json").is_file()]
    if folders:
        folder = scene.rng.choice(folders)
        if (match := _POD_NAME.search((folder / "spec.json").read_bytes())) is not None:
            scene.may_restart.add(match[1].decode())
        hurt(folder / scene.rng.choice(CONTAINER_FILES), scene.rng)
    scene.start()


def damaged_record(scene: Scene) -> None:
    """Bits of the database, or of its log, are flipped while the agent is dead.

    The agent may refuse to start; then it must have ended nobody, and gets its record back.
    """
    with scene.crowd.coming_and_going():
        time.sleep(scene.rng.uniform(0.2, 1))
        scene.node.kill()
    kept = scene.node.folder / "kept"
    copied(scene.node.state, kept)
    files = [scene.node.state / "pinfold.db-wal"] * 3 + [scene.node.state / "pinfold.db"]
    file = scene.rng.choice([one for one in files if one.exists()])
    what = flip_many(file, scene.rng, scene.rng.choice([1, 4, 64]))
    before = [one.main for one in scene.crowd.wanted.values() if one.main is not None]
    alive = [main for main in before if born(main[0]) == main[1]]
    problem = scene.node.start()
    if problem and scene.node.process is not None and scene.node.process.poll() is not None:
        ended = [pid for pid, began in alive if born(pid) != began]
        scene.check(not ended, f"{what}: the start was refused, and {ended} were ended")
        scene.node.process = None
        put_back(kept, scene.node.state)
        scene.start()
        return
    scene.check(not problem, f"{what}: {problem}")


# ------------------------------------------------------------------------------ other programs


def second_agent(scene: Scene) -> None:
    """Another agent wants the same cgroups, the same record or the same socket: it is refused."""
    other = scene.node.folder / "other"
    for what, section in {
        "cgroups": {"stateDir": f"{other}/state", "socket": f"{other}/s"},
        "record": {"cgroupName": f"{scene.node.name}-2", "socket": f"{other}/s"},
        "socket": {"cgroupName": f"{scene.node.name}-2", "stateDir": f"{other}/state"},
    }.items():
        process = scene.node.launch(config=scene.node.configuration(**section))
        try:
            status = process.wait(READY)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = 0
        scene.check(status not in (0, None), f"a second agent with the same {what} ran")
        left = [str(path) for path in (other,) if path.exists()]
        left += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{scene.node.name}-2")]
        scene.check(not left, f"a refused agent (same {what}) left {', '.join(left)}")


def crowded_socket(scene: Scene) -> None:
    """Many clients connect and say nothing, or nonsense; a request is answered all the same."""
    with ExitStack() as stack:
        for number in range(300):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(2)
            with suppress(OSError):
                client.connect(str(scene.node.socket))
                if number % 3 == 0:
                    client.sendall(bytes(scene.rng.randrange(256) for _ in range(200)))
        answered = False
        for _ in range(20):
            try:
                scene.node.ask("GET", "/v1/status", seconds=20)
            except (Refused, NoAnswerError):
                time.sleep(0.5)
            else:
                answered = True
                break
        scene.check(answered, "beside 300 connections that say nothing, nobody is served")


FAULTS: Final[dict[str, Callable[[Scene], None]]] = {
    "kill agent": kill_agent,
    "kill while starting": kill_while_starting,
    "kill supervisor": kill_supervisor,
    "kill supervisor and agent": kill_supervisor_and_agent,
    "stop agent": stop_agent,
    "stop supervisor": stop_supervisor,
    "stop container": stop_container,
    "hotplug": hotplug,
    "full disk": full_disk,
    "damaged container": damaged_container,
    "damaged record": damaged_record,
    "second agent": second_agent,
    "crowded socket": crowded_socket,
    "resize": moves.resize,
    "kill in resizes": moves.kill_in_resizes,
    "rebalance": moves.rebalance,
    "kill in rebalances": moves.kill_in_rebalances,
    "pod floods": hostile.flood,
    "pod is stubborn": hostile.stubborn,
    "pod leaves daemons": hostile.family,
    "pod spawns for ever": hostile.spawning,
    "pod widens its affinity": hostile.greedy,
    "pod escapes": hostile.escaping,
    "pods are short": hostile.short,
    "pods have bad names": hostile.names,
}
