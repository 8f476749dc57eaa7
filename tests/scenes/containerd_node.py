"""A private containerd, with NRI, in a folder of its own: nothing of the machine's is touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.scenes.oci_image import REFERENCE, write_image

NAMESPACE: Final = "k8s.io"
"""containerd's own namespace for what came through CRI."""

STATIC_BUSYBOX: Final = Path("/bin/busybox")

_CONFIG: Final = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.nri.v1.nri"]
  disable = {no_nri}
  disable_connections = false
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf.d"
  socket_path = "{folder}/nri.sock"
  plugin_registration_timeout = "{nri_timeout}"
  plugin_request_timeout = "{nri_timeout}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  # A negative oom_score_adj needs CAP_SYS_RESOURCE, which not every test machine grants.
  restrict_oom_score_adj = true
  disable_hugetlb_controller = {no_hugetlb}
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni/bin"
    conf_dir = "{folder}/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # Needs no overlay, which cannot be stacked on the overlay of a guest or a build container.
    snapshotter = "native"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def why_no_containerd() -> str | None:
    """Why no containerd can be run here; None where one can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("containerd", "runc", "ctr") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (tests/e2e/install.sh installs them)"
    if not STATIC_BUSYBOX.exists():
        return "not installed: busybox-static (tests/e2e/install.sh installs it)"
    return None


class ContainerdNode:
    """One containerd process and what belongs to it.

    ``address`` is its CRI socket, ``nri`` its NRI socket, ``image`` the one image that it has;
    ``folder/cdi`` is where it looks for CDI devices.
    """

    image = REFERENCE

    def __init__(
        self, folder: Path, *, nri: bool = True, nri_timeout: str = "5s", hugetlb: bool = False
    ) -> None:
        self.folder = folder
        self.address = folder / "containerd.sock"
        self.nri = folder / "nri.sock"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "config.toml").write_text(
            _CONFIG.format(
                folder=folder,
                image=REFERENCE,
                no_nri=str(not nri).lower(),
                no_hugetlb=str(not hugetlb).lower(),
                nri_timeout=nri_timeout,
            )
        )

    def start(self, timeout: float = 90) -> None:
        """Start containerd, and return when its CRI answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["containerd", "--config", str(self.folder / "config.toml")],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | {"GOMAXPROCS": "2"},
            )
        deadline = time.monotonic() + timeout
        while subprocess.run(
            ["ctr", "--address", str(self.address), "--connect-timeout", "1s", "version"],
            check=False,
            capture_output=True,
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"containerd does not answer: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        if not self.ctr("images", "ls", "-q").strip():
            tar = self.folder / "image.tar"
            write_image(tar, STATIC_BUSYBOX)
            self.ctr("images", "import", str(tar))

    def stop(self) -> None:
        """End containerd; containers run on."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End containerd as a crash does; containers run on."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to containerd; wait for its end unless it only stops or goes on."""
        if self._process is not None:
            self._process.send_signal(number)
            if number not in (signal.SIGSTOP, signal.SIGCONT):
                self._process.wait(30)
                self._process = None

    def ctr(self, *arguments: str) -> str:
        """What ``ctr`` prints."""
        return subprocess.run(
            ["ctr", "--address", str(self.address), "--namespace", NAMESPACE, *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def clean(self) -> None:
        """End every container, and leave no process and no mount behind."""
        self.kill()
        groups: set[Path] = set()
        for shim in list(self._shims()):
            for pid in (*_descendants(shim), shim):
                groups |= _cgroups(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _remove_when_empty(groups - _cgroups(os.getpid()))
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _shims(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and str(self.address) in (entry / "cmdline").read_text():
                    yield int(entry.name)


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    below = [int(child) for child in children]
    return below + [found for child in below for found in _descendants(child)]


def _cgroups(pid: int) -> set[Path]:
    """The folders of a process's cgroups, without the roots of the hierarchies."""
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # A hierarchy is mounted under its controllers, or (v2) alone or as "unified".
            for name in (controllers.removeprefix("name="), "unified", ""):
                folder = Path("/sys/fs/cgroup", name, path.lstrip("/"))
                if path != "/" and (folder / "cgroup.procs").exists():
                    found.add(folder)
    return found


def _remove_when_empty(groups: set[Path]) -> None:
    deadline = time.monotonic() + 5
    while groups and time.monotonic() < deadline:
        for group in sorted(groups, reverse=True):
            with suppress(OSError):
                group.rmdir()
            if not group.exists():
                groups.discard(group)
                parent = group.parent
                if (parent.parent / "cgroup.procs").exists() and not _populated(parent):
                    groups.add(parent)
        time.sleep(0.02)


def _populated(group: Path) -> bool:
    with suppress(OSError):
        return any(group.glob("*/")) or bool((group / "cgroup.procs").read_text().strip())
    return True


@contextmanager
def containerd_node(**options: Any) -> Iterator[ContainerdNode]:
    """A started containerd (see :class:`ContainerdNode` for the options), cleaned up afterwards."""
    if (reason := why_no_containerd()) is not None:
        pytest.skip(reason)
    # Socket paths have 108 bytes at most, so pytest's own folders are too deep.
    node = ContainerdNode(Path(tempfile.mkdtemp(prefix="pinfold-", dir="/run")), **options)
    try:
        node.start()
        yield node
    finally:
        node.clean()
