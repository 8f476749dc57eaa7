"""What a container executes: its file, arguments, environment and folder, checked beforehand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from pinfold.adapters.process.credentials import Credentials, credentials_of
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of a container that has none of its own, as in most images."""

_OOM_SCORES: Final = range(-1000, 1001)
"""What the kernel takes as ``oom_score_adj``."""


class Command(Struct, frozen=True):
    """What is executed; ``env`` is the whole environment, nothing of the agent's is inherited."""

    program: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str
    oom_score_adj: int | None
    credentials: Credentials = field(default_factory=Credentials)

    def order(self, boot: str, open_files: int) -> bytes:
        """The order for the supervisor; ``open_files`` is the soft limit that the command gets."""
        score = "" if self.oom_score_adj is None else str(self.oom_score_adj)
        fields = [
            *(boot, str(open_files), score, self.credentials.order()),
            *(self.program, self.working_dir),
            *(str(len(self.argv)), *self.argv),
            *(f"{name}={value}" for name, value in self.env.items()),
        ]
        return b"".join(os.fsencode(text) + b"\0" for text in fields)


def resolve(spec: ContainerSpec) -> Command:
    """The command of a container, whose file and folder are there now.

    Raises:
        RuntimeFailedError: there is no command, no such file or folder, a text that the kernel
            cannot take, rights that it cannot have, or a file that a device plugin gives and that
            does not exist.
    """
    process = spec.process
    if not process.argv:
        raise RuntimeFailedError(
            f"container {spec.key} has no command",
            "give it a command: without a container runtime there is no image to take one from",
        )
    credentials = credentials_of(process.security)
    env = {"PATH": DEFAULT_PATH, "HOME": credentials.home, **process.env, **spec.env}
    folder = process.working_dir or "/"
    for text in (*process.argv, *env, *env.values(), folder):
        if "\0" in text:
            raise RuntimeFailedError(f"container {spec.key}: {text!r} has a NUL character", "")
    _check_devices(spec)
    for name in env:
        if not name or "=" in name:
            raise RuntimeFailedError(f"container {spec.key}: {name!r} cannot name a variable", "")
    if spec.oom_score_adj is not None and spec.oom_score_adj not in _OOM_SCORES:
        raise RuntimeFailedError(
            f"container {spec.key}: oom_score_adj {spec.oom_score_adj} is out of range",
            f"give {_OOM_SCORES[0]} to {_OOM_SCORES[-1]}",
        )
    if not Path(folder).is_absolute():
        raise RuntimeFailedError(
            f"cannot enter the working directory {folder!r}", "give an absolute path"
        )
    if not Path(folder).is_dir():
        what = "is no directory" if Path(folder).exists() else "does not exist"
        raise RuntimeFailedError(
            f"cannot enter the working directory {folder!r}: it {what}",
            "make it, or correct workingDir",
        )
    program = find_program(process.argv[0], env.get("PATH", ""), Path(folder))
    return Command(program, process.argv, env, folder, spec.oom_score_adj, credentials)


def find_program(command: str, search: str, folder: Path) -> str:
    """The file to execute: a path seen from ``folder``, or the first hit in ``search`` (PATH).

    Raises:
        RuntimeFailedError: there is none that can be executed.
    """
    if "/" in command:
        files = [folder / command]
    else:
        # An empty entry of PATH is the current directory (POSIX).
        files = [folder / entry / command for entry in search.split(":")] if command else []
    found = [file for file in files if file.is_file()]
    for file in found:
        if os.access(file, os.X_OK):
            return str(file)
    if found:
        raise RuntimeFailedError(
            f"cannot execute {str(found[0])!r}: no permission to execute it",
            f"chmod +x {found[0]}",
        )
    if "/" in command and files[0].is_dir():
        raise RuntimeFailedError(f"cannot execute {str(files[0])!r}: it is a directory", "")
    where = "no such file" if "/" in command else f"not found on PATH {search!r}"
    raise RuntimeFailedError(
        f"cannot execute {command!r}: {where}", "install it, or give its full path"
    )


def _check_devices(spec: ContainerSpec) -> None:
    """A process sees the files of the host; those that a device plugin gives must be there."""
    for what, given in (("mount", spec.devices.mounts), ("device node", spec.devices.devices)):
        for one in given:
            path = Path(one.host_path)
            if not path.is_absolute() or "\0" in one.host_path or not path.exists():
                raise RuntimeFailedError(
                    f"container {spec.key}: its device plugin gives it the {what} "
                    f"{one.host_path!r}, which does not exist",
                    "see the device plugin and its driver",
                )
