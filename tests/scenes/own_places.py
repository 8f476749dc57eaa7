"""The tests' own view of the machine: what a kubelet, a runtime or an agent has here is not theirs.

Where a machine has a kubelet, a container runtime or an agent, their well-known places are covered
by empty ones, in a mount namespace of the tests' own: an agent that a test starts without a word
about device plugins must not take the kubelet's ``kubelet.sock``.  Whatever a test leaves in such a
place fails the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PLACES: Final = (
    "/etc/cdi",
    "/etc/crictl.yaml",
    "/etc/kubernetes",
    "/etc/pinfold",
    "/run/crio",
    "/run/irqbalance",
    "/run/k3s",
    "/run/nri",
    "/run/pinfold",
    "/run/secrets/kubernetes.io",
    "/var/lib/kubelet",
    "/var/lib/pinfold",
    "/var/log/containers",
    "/var/run/cri-dockerd.sock",
    "~/.kube",
    "~/.local/state/pinfold",
)
"""Nothing of what is run for a test looks or writes there."""

SHIMS: Final = "/run/containerd"
"""Covered, too; but containerd has the sockets of its shims here, whatever its configuration."""

VARIABLES: Final = (
    "CONTAINER_RUNTIME_ENDPOINT",
    "IMAGE_SERVICE_ENDPOINT",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "NODE_NAME",
    "NOTIFY_SOCKET",
    "PINFOLD_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)
"""What the environment says of the developer's own agents and clusters."""

_NEWNS: Final = 0x20000
_REC: Final = 0x4000
_SLAVE: Final = 0x80000
_BIND: Final = 0x1000


@dataclass(slots=True)
class OwnPlaces:
    """What is covered, and what is missing on this machine and has to stay so.

    ``problem`` says why nothing is covered; "" where that is done, or nothing is there.
    """

    covered: list[Path] = field(default_factory=list)
    absent: list[Path] = field(default_factory=list)
    problem: str = ""

    def touched(self) -> list[str]:
        """What has come into being there since."""
        found = [path for path in self.absent if os.path.lexists(path)]
        for path in self.covered:
            with contextlib.suppress(FileNotFoundError):  # its owner has taken it away meanwhile
                if path.is_dir():
                    found += path.iterdir()
                elif path.stat().st_size:
                    found.append(path)
        return [str(path) for path in found]


def own_places() -> OwnPlaces:
    """Cover the well-known places for this process and all that it starts, once."""
    for variable in VARIABLES:
        os.environ.pop(variable, None)
    run = tempfile.mkdtemp(prefix="pinfold-test-run-")
    os.environ["PINFOLD_RUN_DIR"] = os.environ["XDG_RUNTIME_DIR"] = run
    own = OwnPlaces()
    there: list[Path] = []
    for name in PLACES:
        place = Path(name).expanduser()
        (there if place.exists() else own.absent).append(place.resolve())
    shims = Path(SHIMS)
    wanted = [*there, *([shims] if shims.exists() else [])]
    if not wanted:
        return own
    try:
        _unshare()
        for place in wanted:
            _cover(place)
    except OSError as error:
        own.problem = f"{error.filename or 'unshare'}: {error.strerror}"
        return own
    own.covered = there
    return own


_libc = ctypes.CDLL(None, use_errno=True)


def _unshare() -> None:
    if _libc.unshare(_NEWNS):
        raise _error("unshare")
    _mount("none", "/", "", _REC | _SLAVE)


def _cover(place: Path) -> None:
    if place.is_dir():
        _mount("none", str(place), "tmpfs", 0, "mode=755")
    else:
        empty = tempfile.mkstemp(prefix="pinfold-test-empty-")
        os.close(empty[0])
        _mount(empty[1], str(place), "", _BIND)
        Path(empty[1]).unlink()


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = [os.fsencode(text) for text in (source, target, kind)]
    if _libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(options) or None):
        raise _error(target)


def _error(where: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), where)
