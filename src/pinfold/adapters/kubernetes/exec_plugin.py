"""Credential plugins of a kubeconfig: programs that print a token or a client certificate.

Source: the Kubernetes documentation of ``client-go`` credential plugins
(``client.authentication.k8s.io``, v1 and v1beta1).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec
from msgspec import Struct

from pinfold.ports.kubernetes import KubernetesError

TIMEOUT: Final = 300.0
"""Seconds that a plugin may take: it may have somebody log in."""

_GROUP: Final = "client.authentication.k8s.io"
_VERSIONS: Final = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_KIND: Final = "ExecCredential"
_INFO: Final = "KUBERNETES_EXEC_INFO"
_MOST: Final = 1 << 20
_PATIENCE: Final = 1.0
"""Seconds for what a plugin that has ended leaves behind, which may still print for it."""
_LOOK: Final = 0.05
"""Seconds between two looks whether it has ended."""


class PluginError(KubernetesError):
    """A credential plugin was started, and gives no credential."""


class Credential(Struct, frozen=True):
    """What a plugin has printed: a token, or certificate and key in PEM; "" for what it has not."""

    token: str = ""
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return "<Credential>"  # secrets


class _Variable(Struct):
    name: str
    value: str = ""


class _Exec(Struct, rename="camel"):
    """The field ``exec`` of a user."""

    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


class _Status(Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Printed(Struct, rename="camel"):
    api_version: str
    kind: str
    status: _Status | None = None


def credential_of(
    written: object, kubeconfig: Path, cluster: Callable[[], Mapping[str, Any]]
) -> Credential:
    """Start the plugin of a user, and take what it prints.

    What it says on standard error is for who sits at the terminal, as is what it asks.

    Args:
        written: the field ``exec``.
        kubeconfig: its file; a command with a relative path is relative to its folder.
        cluster: what the plugin is told of the cluster where it wants to know.

    Raises:
        PluginError: it fails, or prints no credential; nothing that it has printed is in the
            message.
        KubernetesError: what is written is no plugin, or it cannot be started.
    """
    where = f"{kubeconfig}: user.exec"
    try:
        plugin = msgspec.convert(written, _Exec)
    except msgspec.ValidationError as error:
        raise KubernetesError(f"{where}: {error}") from None
    if plugin.api_version not in _VERSIONS:
        raise KubernetesError(
            f"{where}.apiVersion: {plugin.api_version!r} is not supported",
            f"it is one of {', '.join(_VERSIONS)}",
        )
    command = _command(plugin, kubeconfig, where)
    interactive = plugin.interactive_mode != "Never" and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not interactive:
        raise KubernetesError(
            f"{where}: {plugin.command} has to ask somebody, and standard input is no terminal"
        )
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = cluster()
    asked = {"apiVersion": plugin.api_version, "kind": _KIND, "spec": spec}
    more = {one.name: one.value for one in plugin.env or ()}
    printed = _run(
        [command, *(plugin.args or ())],
        {**os.environ, **more, _INFO: json.dumps(asked)},
        f"{where}: {plugin.command}",
        interactive=interactive,
    )
    return _taken(printed, plugin, f"{where}: {plugin.command}")


def _command(plugin: _Exec, kubeconfig: Path, where: str) -> str:
    if "/" in plugin.command:
        # Relative to the file, wherever the user stands.
        found = str(kubeconfig.absolute().parent / plugin.command)
        found = found if os.access(found, os.X_OK) else ""
    else:
        found = shutil.which(plugin.command) or ""
    if not found:
        hint = " ".join(plugin.install_hint.split())[:500]
        raise KubernetesError(f"{where}: there is no program {plugin.command!r}", hint)
    return found


def _run(
    words: list[str], environment: Mapping[str, str], what: str, *, interactive: bool
) -> bytes:
    try:
        process = subprocess.Popen(  # noqa: S603 - what the user's own kubeconfig says, as kubectl does
            words,
            env=environment,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # One that is told to ask nobody has no terminal, and ends with all that it has started.
            start_new_session=not interactive,
        )
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise KubernetesError(f"{what}: cannot be started: {reason}") from None
    with process:
        try:
            printed = _printed_by(process, time.monotonic() + TIMEOUT)
        except subprocess.TimeoutExpired:
            raise PluginError(f"{what}: has not ended within {TIMEOUT:g} s") from None
        finally:
            # Whoever still writes is ended by that.
            cast("IO[bytes]", process.stdout).close()
            if process.poll() is None:
                _end(process, group=not interactive)
    if len(printed) > _MOST:
        raise PluginError(f"{what}: printed no {_KIND}: more than {_MOST >> 20} MiB")
    if process.returncode:
        raise PluginError(f"{what}: ended with status {process.returncode}", "run it by hand")
    return printed


def _printed_by(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """What a process prints until it ends, or has printed too much; raises TimeoutExpired.

    What it leaves behind may hold its standard output for as long as it likes.
    """
    output = cast("IO[bytes]", process.stdout).fileno()
    poll = select.poll()
    poll.register(output)
    printed = bytearray()
    until = deadline
    while len(printed) <= _MOST:
        if until == deadline and process.poll() is not None:
            until = time.monotonic() + _PATIENCE
        left = until - time.monotonic()
        if left <= 0:
            break
        if poll.poll(min(left, _LOOK) * 1000):
            piece = os.read(output, _MOST + 1 - len(printed))
            if not piece:
                process.wait(max(0.0, deadline - time.monotonic()))
                break
            printed += piece
    else:
        return bytes(printed)
    if process.poll() is None:
        raise subprocess.TimeoutExpired(process.args, TIMEOUT)
    return bytes(printed)


def _end(process: subprocess.Popen[bytes], *, group: bool) -> None:
    """Kill a process that has not been waited for yet, with its group."""
    if group:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _taken(printed: bytes, plugin: _Exec, what: str) -> Credential:
    try:
        told = msgspec.json.decode(printed, type=_Printed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PluginError(f"{what}: printed no {_KIND}: {error}") from None
    if (told.api_version, told.kind) != (plugin.api_version, _KIND):
        raise PluginError(
            f"{what}: printed a {told.kind} of {told.api_version}, and not one of "
            f"{plugin.api_version}"
        )
    status = told.status or _Status()
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise PluginError(f"{what}: printed neither a token nor a certificate with its key")
    if status.token and not (status.token.isascii() and status.token.isprintable()):
        raise PluginError(f"{what}: printed a token that cannot be sent")
    return Credential(status.token, status.client_certificate_data, status.client_key_data)
