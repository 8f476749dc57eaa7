"""Credential plugins of a kubeconfig: programs that print a token or a client certificate.

Source: the Kubernetes documentation of ``client-go`` credential plugins
(``client.authentication.k8s.io``, v1 and v1beta1).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

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
        done = subprocess.run(  # noqa: S603 - what the user's own kubeconfig says, as kubectl does
            words,
            env=environment,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PluginError(f"{what}: has printed nothing within {TIMEOUT:g} s") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise KubernetesError(f"{what}: cannot be started: {reason}") from None
    if done.returncode:
        raise PluginError(f"{what}: ended with status {done.returncode}", "run it by hand")
    return done.stdout


def _taken(printed: bytes, plugin: _Exec, what: str) -> Credential:
    try:
        if len(printed) > _MOST:
            raise msgspec.ValidationError(f"more than {_MOST >> 20} MiB")
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
