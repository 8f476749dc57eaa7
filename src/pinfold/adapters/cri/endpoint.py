"""Where the container runtime listens.

Source: ``crictl`` (``--runtime-endpoint``, ``CONTAINER_RUNTIME_ENDPOINT``, ``/etc/crictl.yaml``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pinfold.formats.yaml_documents import YAMLError, yaml_documents
from pinfold.ports.errors import RuntimeFailedError

VARIABLE: Final = "CONTAINER_RUNTIME_ENDPOINT"
CRICTL_YAML: Final = Path("/etc/crictl.yaml")
USUAL_PLACES: Final = (
    "unix:///run/containerd/containerd.sock",
    "unix:///run/crio/crio.sock",
    "unix:///var/run/cri-dockerd.sock",
    "unix:///run/k3s/containerd/containerd.sock",
)
_SCHEME: Final = "unix://"


class NoRuntimeError(RuntimeFailedError):
    """No runtime listens (yet)."""


class Endpoint(Struct, frozen=True):
    """A runtime's address (``unix:///...``) and who named it.

    ``timeout`` is crictl's, in seconds, None where it says nothing.
    """

    address: str
    source: str
    timeout: float | None = None

    @property
    def path(self) -> str:
        """The socket's path."""
        return self.address.removeprefix(_SCHEME)


def find_endpoint(
    environ: Mapping[str, str],
    crictl_yaml: str | None,
    exists: Callable[[str], bool],
    *,
    setting: str = "",
) -> Endpoint:
    """Choose the address: the setting, the environment, crictl's file, else a usual place.

    Args:
        environ: the process's environment.
        crictl_yaml: what ``/etc/crictl.yaml`` has in it, None where there is none.
        exists: whether a socket is there; asked for the usual places only.
        setting: the address from the configuration or the command line.

    Raises:
        NoRuntimeError: nothing was found.
        RuntimeFailedError: what was named is no address of a socket.
    """
    crictl = _read_crictl(crictl_yaml) if crictl_yaml is not None else {}
    timeout = _timeout(crictl.get("timeout"))
    named = (
        (setting, "the configuration"),
        (environ.get(VARIABLE, ""), VARIABLE),
        (crictl.get("runtime-endpoint") or "", f"runtime-endpoint of {CRICTL_YAML}"),
    )
    for address, source in named:
        if address:
            return Endpoint(_unix(address, source), source, timeout)
    for address in USUAL_PLACES:
        if exists(address.removeprefix(_SCHEME)):
            return Endpoint(address, "a usual place", timeout)
    looked = ", ".join(address.removeprefix(_SCHEME) for address in USUAL_PLACES)
    raise NoRuntimeError(
        f"no container runtime was found: no {VARIABLE}, no runtime-endpoint in {CRICTL_YAML},"
        f" no socket at {looked}",
        f"start containerd or CRI-O, or set {VARIABLE}=unix:///path/to/its.sock",
    )


def read_endpoint(setting: str = "", *, crictl_file: Path = CRICTL_YAML) -> Endpoint:
    """Choose the address on this machine; see :func:`find_endpoint`.

    Raises:
        NoRuntimeError: nothing was found.
        RuntimeFailedError: what was named is no address, or crictl's file cannot be read.
    """
    text = None
    try:
        text = crictl_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        if not setting and not os.environ.get(VARIABLE):
            raise RuntimeFailedError(
                f"{crictl_file} cannot be read: {error}", f"or set {VARIABLE}"
            ) from None
    return find_endpoint(os.environ, text, is_socket, setting=setting)


def is_socket(path: str) -> bool:
    """Whether a unix socket is there."""
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False


def _unix(address: Any, source: str) -> str:  # noqa: ANN401 - what a file of somebody else says
    if isinstance(address, str):
        path = address.removeprefix(_SCHEME) if "://" in address else address.removeprefix("unix:")
        if path.startswith("/") and "\0" not in path:
            return f"{_SCHEME}{path}"
    raise RuntimeFailedError(
        f"{source} says {str(address)[:100]!r}, which is no address of a container runtime",
        "write unix:///path/to/its.sock",
    )


def _read_crictl(text: str) -> Mapping[str, Any]:
    try:
        content: Any = next((document.content for document in yaml_documents(text)), {})
    except YAMLError as error:
        raise RuntimeFailedError(
            f"{CRICTL_YAML}:{error.line}: {error}", f"correct it, or set {VARIABLE}"
        ) from None
    if not isinstance(content, Mapping):
        raise RuntimeFailedError(f"{CRICTL_YAML} is no mapping", f"correct it, or set {VARIABLE}")
    return content


def _timeout(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None
