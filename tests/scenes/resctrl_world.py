"""A machine with resctrl, served by the file system of the tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pinfold.adapters.resctrl import ResctrlGroups
from pinfold.adapters.resctrl.groups import Mounts
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.mounts import Mount
from tests.scenes.fuse_folder import served
from tests.scenes.resctrl_kernel import ResctrlKernel, Resource

TWO_CACHES = {0: CPUSet(range(4)), 1: CPUSet(range(4, 8))}


class ResctrlWorld:
    """The kernel, the folder where it is seen, and sysfs; agents come and go."""

    def __init__(self, kernel: ResctrlKernel, folder: Path, tmp: Path, options: str = "") -> None:
        self.kernel = kernel
        self.folder = folder
        self.record = tmp / "resctrl.json"
        self.sysfs = tmp / "cpu"
        self._is_mounted = True
        self.mounted_with: list[str] = []
        self.options = frozenset(filter(None, options.split(",")))
        for domain, cpus in kernel.domains.items():
            for cpu in cpus:
                index = self.sysfs / f"cpu{cpu}/cache/index3"
                index.mkdir(parents=True)
                (index / "level").write_text("3\n")
                (index / "id").write_text(f"{domain}\n")

    def groups(self, mount: str = "never") -> ResctrlGroups:
        """An agent's, anew."""
        mounts = Mounts(self._found, self._mount, self.unmount)
        online = lambda: self.kernel.online  # noqa: E731 - one expression
        return ResctrlGroups(self.record, mount, online, mounts, self.sysfs)

    def _found(self) -> Mount | None:
        if not self._is_mounted:
            return None
        return Mount("/", str(self.folder), "resctrl", self.options, writable=True)

    def _mount(self, options: str) -> None:
        self._is_mounted = True
        self.mounted_with.append(options)

    def unmount(self) -> None:
        """Have it mounted nowhere."""
        self._is_mounted = False

    def is_mounted(self) -> bool:
        """Whether it is mounted."""
        return self._is_mounted


@contextmanager
def resctrl_world(
    tmp: Path,
    *resources: Resource,
    options: str = "",
    domains: Mapping[int, CPUSet] = TWO_CACHES,
) -> Iterator[ResctrlWorld]:
    """It, mounted until the end of the block."""
    kernel, folder = ResctrlKernel(resources, dict(domains)), tmp / "resctrl"
    folder.mkdir()
    with served(kernel, folder):
        yield ResctrlWorld(kernel, folder, tmp, options)
