"""Talking to a supervisor: make it, and give a container the word to start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Final

from pinfold.adapters.process.documents import Identity
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.output import open_output
from pinfold.adapters.process.processes import ProcessId
from pinfold.logs.layout import LogLimits
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec

_PROGRAMS: Final = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); "
_SUPERVISE: Final = f"{_PROGRAMS}import supervisor; supervisor.main()"
_SUCCEED: Final = f"{_PROGRAMS}import output; output.succeed()"
"""Imported, it is read as bytecode; compiled as a script, it would take a megabyte more."""

_ANSWER: Final = 4096
_DEATH_MS: Final = 1000
"""How long a main process that waits may take to end without its supervisor."""

_LOADER: Final = ("LD_LIBRARY_PATH",)


async def launch(
    folder: ContainerFolder,
    spec: ContainerSpec,
    order: bytes,
    *,
    patience: float,
    limits: LogLimits | None = None,
) -> int:
    """Start the supervisor of a container, whose main process is then ready and waits.

    Returns:
        The pid of the supervisor, a child of this process; the rest is in ``state``.

    Raises:
        RuntimeFailedError: the container cannot be, or was not within ``patience`` seconds; no
            process is left.
    """
    with contextlib.ExitStack() as descriptors:
        command = supervisor_command(
            folder, Identity(spec.key, spec.attempt), limits or LogLimits()
        )
        pid, answer = _spawn(command, order, descriptors)
        try:
            # Python takes longer to start than this takes to write.
            folder.write_spec(spec)
            async with asyncio.timeout(patience):
                data = await _read_to_end(answer)
        except BaseException as error:
            kill_child(pid, folder)
            if isinstance(error, TimeoutError):
                raise RuntimeFailedError(
                    f"no supervisor came up within {patience:g} s in {folder.path}",
                    "the machine is overloaded, or its disk does not answer",
                ) from None
            raise
    if data == b"ok\n":
        return pid
    problem, _, remedy = data.decode(errors="replace").partition("\n")
    kill_child(pid, folder)
    raise RuntimeFailedError(problem or f"the supervisor died in {folder.path}", remedy)


async def give_word(folder: ContainerFolder, *, patience: float) -> str | None:
    """Let the main process execute its command, and wait until it did.

    Returns:
        "" when it was executed, else why not and what can be done, on two lines; None when nobody
        waits for the word (any more).

    Raises:
        TimeoutError: it was not executed within ``patience`` seconds, but may still be.
        OSError: the FIFOs are not as they were.
    """
    with contextlib.ExitStack() as descriptors:
        outcome = os.open(folder.path / "outcome", os.O_RDONLY | os.O_NONBLOCK)
        descriptors.callback(os.close, outcome)
        with contextlib.suppress(BlockingIOError):
            # The end of the file at once: nobody holds the other end.  A text can only be here
            # because an agent that died meanwhile gave the word.
            return os.read(outcome, _ANSWER).decode(errors="replace") or None
        try:
            go = os.open(folder.path / "go", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody reads there any more
            return None
        descriptors.callback(os.close, go)
        os.write(go, b"\n")
        async with asyncio.timeout(patience):
            return (await _read_to_end(outcome)).decode(errors="replace")


def supervisor_command(folder: ContainerFolder, identity: Identity, limits: LogLimits) -> list[str]:
    """The command line of a supervisor, which wants its order on the standard input.

    :mod:`pinfold.adapters.process.living` finds it again by this.
    """
    program = [sys.executable, "-I", "-S", "-c", _SUPERVISE, str(folder.path), identity.encode()]
    return [*program, str(limits.size), str(limits.files)]


def launch_reader(folder: ContainerFolder, main: ProcessId, limits: LogLimits) -> int | None:
    """Have a process read what a container writes whose supervisor is gone; its pid.

    None where somebody reads it, where it goes to a file, or where no process can be started: the
    container then waits once its pipe is full.
    """
    try:
        reader = open_output(os.fsencode(folder.path))
    except OSError:
        return None
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _SUCCEED, str(folder.path)]
            + [str(number) for number in (limits.size, limits.files, main.pid, main.start)],
            _environment(),
            file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0)]
            + [(os.POSIX_SPAWN_OPEN, out, "/dev/null", os.O_WRONLY, 0) for out in (1, 2)],
            setsid=True,
        )
    except OSError:
        return None
    finally:
        os.close(reader)


def kill_child(pid: int, folder: ContainerFolder) -> None:
    """End a supervisor that is a child of this process, with the main process, which waits."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # The main process ends of itself now; it has this FIFO open until it does.
    with contextlib.suppress(OSError):
        outcome = os.open(folder.path / "outcome", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with contextlib.suppress(BlockingIOError):
                os.read(outcome, _ANSWER)
                return  # nobody has it open
            end = select.poll()
            end.register(outcome, 0)
            end.poll(_DEATH_MS)
        finally:
            os.close(outcome)


def _spawn(command: list[str], order: bytes, descriptors: contextlib.ExitStack) -> tuple[int, int]:
    """Run the supervisor's program; returns its pid and the end of its answer."""
    if not sys.executable:
        raise RuntimeFailedError("Python does not know its own path (sys.executable)")
    with contextlib.ExitStack() as theirs:
        try:
            # Neither a pipe's size nor a process's memory bounds a command line and environment.
            request = os.memfd_create("pinfold-order")
            theirs.callback(os.close, request)
            os.write(request, order)
            os.lseek(request, 0, os.SEEK_SET)
            answer, say = os.pipe()
            descriptors.callback(os.close, answer)
            theirs.callback(os.close, say)
            os.set_blocking(answer, False)
            pid = os.posix_spawn(
                sys.executable,
                command,
                _environment(),
                file_actions=[(os.POSIX_SPAWN_DUP2, request, 0)]
                + [(os.POSIX_SPAWN_DUP2, say, standard) for standard in (1, 2)],
                setsid=True,
            )
        except OSError as error:
            raise RuntimeFailedError(
                f"cannot start a supervisor ({sys.executable}): {error.strerror}",
                "raise the limits on processes and open files (LimitNPROC, LimitNOFILE)",
            ) from None
    return pid, answer


def _environment() -> dict[str, str]:
    # A Python outside of the system's folders may need this to find its library.
    return {name: os.environ[name] for name in _LOADER if name in os.environ}


async def _read_to_end(descriptor: int) -> bytes:
    """Read a pipe until nobody has its other end open."""
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    ended: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        try:
            part = os.read(descriptor, _ANSWER)
        except BlockingIOError:
            return
        parts.append(part)
        if not part and not ended.done():
            loop.remove_reader(descriptor)
            ended.set_result(None)

    loop.add_reader(descriptor, read)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
    return b"".join(parts)
