"""Containers as plain processes: the contract, and what a process finds when it starts."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sys

import pytest
from msgspec.structs import replace

from pinfold.adapters.process.command import DEFAULT_PATH
from pinfold.core.pod.workload import Process
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus
from tests.scenes.log_texts import text_of
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
    answer,
)
from tests.scenes.runtime_contract import (
    RuntimeContract,
    a_spec,
    next_exit,
    opened,
    play,
    started,
    the,
)
from tests.scenes.waiting import until

world = pytest.fixture(a_process_world)


class TestProcessRuntime(RuntimeContract):
    """The runtime of plain processes is a runtime."""


def ran(world: ProcessWorld, spec: ContainerSpec) -> tuple[ContainerStatus, str]:
    """Run a container to its end; returns how it ended and what it wrote."""

    async def run() -> tuple[ContainerStatus, str]:
        shutil.rmtree(world.folder / "logs", ignore_errors=True)  # of one that ran before
        runtime = world.open()
        try:
            created = await runtime.create(spec)
            await runtime.start(created.id)
            told = await next_exit(runtime)
            return told, text_of(runtime.log(created.id))
        finally:
            await runtime.close()

    return play(run())


def shell(script: str) -> ContainerSpec:
    return a_spec(Process(("sh", "-c", script)))


def python(script: str) -> ContainerSpec:
    return a_spec(Process((sys.executable, "-I", "-c", script)))


def failure(world: ProcessWorld, spec: ContainerSpec) -> RuntimeFailedError:
    """How creating a container fails; nothing is left of it."""

    async def run() -> RuntimeFailedError:
        runtime = world.open()
        try:
            with pytest.raises(RuntimeFailedError) as raised:
                await runtime.create(spec)
            assert await runtime.containers() == []
            assert list(world.root.iterdir()) == []
            assert world.processes() == []
            return raised.value
        finally:
            await runtime.close()

    return play(run())


def test_output_and_error_go_to_the_log(world: ProcessWorld) -> None:
    status, log = ran(world, shell("echo out; echo err >&2; cat; exit 4"))
    assert (status.exit_code, log) == (4, "out\nerr\n")


def test_the_environment_is_the_specification_s(
    world: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "1")
    process = Process(("env",), {"A": "process", "B": "two\nlines", "EMPTY": ""})
    _, log = ran(world, replace(a_spec(process), env={"A": "override", "PINFOLD_CPUS": "2-3"}))
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert set(log.removesuffix("\n").split("\n")) == {
        *("A=override", "B=two", "lines", "EMPTY=", "PINFOLD_CPUS=2-3"),
        *(f"PATH={DEFAULT_PATH}", f"HOME={home}"),
    }


def test_arguments_arrive_byte_for_byte(world: ProcessWorld) -> None:
    odd = os.fsdecode(b"\xff\xfe byte")
    script = 'for a in "$@"; do printf "<%s>" "$a"; done'
    _, log = ran(world, a_spec(Process(("sh", "-c", script, "", "", " x\n", odd, "ä*"))))
    assert log == f"<>< x\n><{odd}><ä*>"


def test_a_long_command_line_arrives(world: ProcessWorld) -> None:
    long = "x" * 100_000
    process = Process(("sh", "-c", "echo ${#A} ${#0}", long))
    _, log = ran(world, replace(a_spec(process), env={"A": long}))
    assert log == "100000 100000\n"


def test_a_process_starts_clean(world: ProcessWorld) -> None:
    """Own session, umask 022, no signals blocked or ignored, no files but the standard ones."""
    old = os.umask(0o077)
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)  # noqa: FBT003 - its signature
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        _, log = ran(
            world,
            python(
                "import os, json; s = dict(l.split(':', 1) for l in open('/proc/self/status'));"
                "print(json.dumps([os.getpid() == os.getsid(0) == os.getpgid(0), os.umask(0),"
                "int(s['SigBlk'], 16), sorted(map(int, os.listdir('/proc/self/fd'))),"
                "os.readlink('/proc/self/fd/0'), os.getcwd()]))"
            ),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.umask(old)
        os.close(leaked)
    # The fourth descriptor is the listing's own.
    assert json.loads(log) == [True, 0o022, 0, [0, 1, 2, 3], "/dev/null", "/"]
    _, log = ran(world, shell("grep SigIgn /proc/$$/status"))
    internal = 0b11 << 31  # 32 and 33 are the C library's own, which lets nobody change them
    assert int(log.split()[1], 16) & ~internal == 0


def test_the_working_directory_is_the_specification_s(world: ProcessWorld) -> None:
    folder = world.folder / "dir with space"
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\npwd\n")
    (folder / "tool").chmod(0o755)
    status, log = ran(world, a_spec(Process(("./tool",), working_dir=str(folder))))
    assert (status.exit_code, log) == (0, f"{folder}\n")


def test_the_limit_on_open_files_is_not_the_agent_s(world: ProcessWorld) -> None:
    """The agent raises its own, for the pidfds; programs that use select() need the lower one."""
    text = answer(
        world,
        "c = await started(runtime, Process(('sh', '-c', 'ulimit -n; ulimit -Hn')))",
        "await next_exit(runtime)",
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), text_of(runtime.log(c.id)))",
        under=("prlimit", "--nofile=900:2000"),
    )
    assert text.split() == ["2000", "2000", "900", "2000"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("policy", [os.SCHED_FIFO, os.SCHED_IDLE])
def test_a_policy_and_nice_value_of_the_agent_s_are_not_inherited(
    world: ProcessWorld, policy: int
) -> None:
    before, param = os.sched_getscheduler(0), os.sched_getparam(0)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -3)
    os.sched_setscheduler(0, policy, os.sched_param(10 if policy == os.SCHED_FIFO else 0))
    try:
        text = "import os; print(*((os.sched_getscheduler(p), os.getpriority(0, p)) for p in {}))"
        _, log = ran(world, python(text.format("(0, os.getppid())")))
    finally:
        os.sched_setscheduler(0, before, param)
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    assert log == "(0, 0) (0, 0)\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_an_affinity_of_the_agent_s_is_not_inherited(world: ProcessWorld) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        _, log = ran(world, python("import os; print(len(os.sched_getaffinity(0)))"))
    finally:
        os.sched_setaffinity(0, allowed)
    assert int(log) >= len(allowed)


def test_the_oom_score_is_set(world: ProcessWorld) -> None:
    spec = replace(shell("cat /proc/self/oom_score_adj"), oom_score_adj=999)
    status, log = ran(world, spec)
    assert (log, status.message) == ("999\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up a capability")
def test_a_refused_oom_score_is_noted_and_nothing_else(world: ProcessWorld) -> None:
    text = answer(
        world,
        "c = await runtime.create(replace(a_spec(Process(('true',))), oom_score_adj=-998))",
        "await runtime.start(c.id)",
        "end = await next_exit(runtime)",
        "print(end.exit_code, end.message)",
        under=("setpriv", "--bounding-set", "-sys_resource", "--"),
    )
    assert text.startswith("0 oom_score_adj -998 was refused")


REFUSED = {
    "empty": (Process(), "has no command"),
    "nothing": (Process(("",)), "cannot execute '': not found on PATH"),
    "unknown": (Process(("nope",)), "cannot execute 'nope': not found on PATH"),
    "nowhere": (Process(("/nope/x",)), "cannot execute '/nope/x': no such file"),
    "no permission": (Process(("/etc/passwd",)), "no permission to execute it (chmod +x"),
    "a folder": (Process(("/etc",)), "it is a directory"),
    "NUL": (Process(("sleep", "a\0b")), "NUL"),
    "no name": (Process(("true",), {"": "x"}), "cannot name a variable"),
    "folder missing": (Process(("true",), working_dir="/nope"), "'/nope': it does not exist"),
    "folder relative": (Process(("true",), working_dir="nope"), "absolute path"),
    "folder a file": (Process(("true",), working_dir="/etc/passwd"), "it is no directory"),
    "own PATH": (Process(("true",), {"PATH": "/nope"}), "not found on PATH '/nope'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_command_that_cannot_be_is_refused_at_once(world: ProcessWorld, case: str) -> None:
    process, words = REFUSED[case]
    assert words in str(failure(world, a_spec(process)))


def test_an_oom_score_out_of_range_is_refused(world: ProcessWorld) -> None:
    error = failure(world, replace(a_spec(Process(("true",))), oom_score_adj=1001))
    assert "out of range" in str(error)


UNEXECUTABLE = {
    "interpreter missing": (b"#!/nope/sh\n", 127, "does not exist"),
    "no program": (b"echo no interpreter\n", 126, "Exec format error"),
    "truncated": (b"\x7fELF\x02\x01\x01", 126, "Exec format error"),
}


@pytest.mark.parametrize("case", UNEXECUTABLE)
def test_what_the_kernel_cannot_execute_exits_as_in_a_shell(world: ProcessWorld, case: str) -> None:
    content, code, words = UNEXECUTABLE[case]
    tool = world.folder / "tool"
    tool.write_bytes(content)
    tool.chmod(0o755)

    async def run() -> None:
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(Process((str(tool),))))
            with pytest.raises(RuntimeFailedError) as raised:
                await runtime.start(created.id)
            assert str(tool) in raised.value.problem
            assert words in raised.value.problem
            status = await the(runtime, created.id)
            assert status is not None
            assert (status.state, status.exit_code) == (ContainerState.EXITED, code)
            assert words in status.message

    play(run())


def test_a_folder_that_goes_before_the_start_is_no_obstacle(world: ProcessWorld) -> None:
    """The process is in its folder since it was created, as a process of a shell would be."""
    folder = world.folder / "gone"
    folder.mkdir()

    async def run() -> None:
        async with opened(world) as runtime:
            process = Process(("sh", "-c", "exit 5"), working_dir=str(folder))
            created = await runtime.create(a_spec(process))
            folder.rmdir()
            await runtime.start(created.id)
            assert (await next_exit(runtime)).exit_code == 5

    play(run())


def test_its_folder_is_the_owner_s_alone(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            process = Process(("sh", "-c", "echo; exec sleep 1000"))
            running = await started(runtime, process)
            log = runtime.log(running.id)
            await until(log.exists)
            folder = world.root / running.id
            modes = {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir()}
            assert folder.stat().st_mode & 0o077 == 0
            assert not any(modes[name] for name in ("log", "go", "outcome", "started", "state"))
            # Also root's alone, and yet a container of any user may open its /dev/stdout again.
            assert modes["output"] == 0o022
            assert log.resolve().parent.stat().st_mode & 0o077 == 0

    play(run())
