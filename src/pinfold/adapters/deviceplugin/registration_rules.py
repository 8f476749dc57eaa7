"""Who may register, and where its socket is; refusals are worded as the kubelet words them.

Source: upstream ``pkg/kubelet/cm/devicemanager/plugin/v1beta1`` (``types.go``, ``server.go``,
``handler.go``), ``pkg/apis/core/v1/helper`` and apimachinery's ``IsQualifiedName``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pinfold.core.values.resource_names import is_extended
from pinfold.linux.socket_places import LONGEST_PATH

VERSION: Final = "v1beta1"
"""The only version of the device plugin API."""

SOCKET_NAME: Final = "kubelet.sock"
"""Where plugins register."""

_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


class RegistrationRefusedError(Exception):
    """A plugin may not register; the text is what it is told."""


def check_version(version: str) -> None:
    """Refuse another version than ours (RegistrationRefusedError, in the kubelet's words)."""
    if version != VERSION:
        raise RegistrationRefusedError(
            f"requested API version {go_quoted(version)} is not supported by kubelet. "
            f'Supported version is ["{VERSION}"]'
        )


def check_versions(versions: Sequence[str]) -> None:
    """Refuse one of the registry that has other versions only, in the kubelet's words, too."""
    if VERSION not in versions:
        raise RegistrationRefusedError(
            f"manager version, {VERSION}, is not among plugin supported versions "
            f"[{' '.join(versions)}]"
        )


def check_resource_name(name: str) -> None:
    """Refuse what is no name of an extended resource, in the kubelet's words, too."""
    if not is_extended(name):
        raise RegistrationRefusedError(f"the ResourceName {go_quoted(name)} is invalid")


def endpoint_path(folder: Path, endpoint: str) -> Path:
    """Where the socket of a plugin is that registers with the file name ``endpoint``.

    The kubelet joins whatever it is told; only names of files in ``folder`` are taken here.

    Raises:
        RegistrationRefusedError: it is another path.
    """
    if (
        endpoint in ("", ".", "..", SOCKET_NAME)
        or "/" in endpoint
        or "\0" in endpoint
        or len(os.fsencode(folder / endpoint)) > LONGEST_PATH
    ):
        raise RegistrationRefusedError(
            f"the endpoint {go_quoted(endpoint)} is invalid: it must be the file name of the "
            f"plugin's own socket in {folder}, whose path has {LONGEST_PATH} bytes at most"
        )
    return folder / endpoint


def check_socket(path: Path, folder: Path | None) -> bool:
    """Whether the socket is there yet.

    Args:
        path: where it is to be.
        folder: what it must be in, whatever symbolic links there are; None for anywhere.

    Raises:
        RegistrationRefusedError: another file is there, or a link leads out of the folder.
    """
    try:
        mode = path.stat().st_mode
        inside = folder is None or path.resolve().parent == folder.resolve()
    except FileNotFoundError:
        return False
    except (OSError, RuntimeError) as error:
        raise RegistrationRefusedError(f"{path}: {_words(error)}") from None
    if not inside:
        raise RegistrationRefusedError(f"{path}: a symbolic link that leads out of {folder}")
    if not stat.S_ISSOCK(mode):
        raise RegistrationRefusedError(f"{path}: is no socket")
    return True


def printable(text: str) -> str:
    """A text of a peer as it may stand in a line of a log."""
    return "".join(char if char.isprintable() else " " for char in text)


def go_quoted(text: str) -> str:
    """A text as Go's ``%q`` prints it."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _words(error: OSError | RuntimeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
