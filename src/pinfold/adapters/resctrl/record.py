"""What resctrl had before, and which groups are ours, in a file that outlives the agent."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from pinfold.core.cache.offers import Schemata
from pinfold.linux.boot_file import BootFile, BootRecord
from pinfold.linux.processes import boot_id
from pinfold.ports.cache_groups import CacheError

Values = dict[str, dict[int, int]]


class Kept(BootRecord, frozen=True, kw_only=True):
    """The file.

    ``groups`` are those that we have made, or are about to.  ``before`` is what the default group
    had without us, ``written`` what was written there last, and ``next_written`` what may have been
    since.  ``mounted`` tells that we have mounted resctrl.
    """

    groups: tuple[str, ...] = ()
    before: Values = field(default_factory=dict)
    written: Values = field(default_factory=dict)
    next_written: Values = field(default_factory=dict)
    mounted: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to put right."""
        return not (self.groups or self.before or self.mounted)

    def without_us(self, default: Schemata) -> Values:
        """What the default group would have without us, of which this is what it has.

        What somebody else has written is what it has without us from then on.
        """
        found = {line: dict(domains) for line, domains in default.items()}
        for line, domains in self.before.items():
            for domain, value in domains.items():
                now = found.get(line, {}).get(domain)
                ours = (
                    self.written.get(line, {}).get(domain),
                    self.next_written.get(line, {}).get(domain),
                )
                if now is not None and now in ours:
                    found[line][domain] = value
        return found


class KeptFile:
    """The record, read once; it is gone while there is nothing to put right."""

    def __init__(self, path: Path) -> None:
        self._file = BootFile(
            path,
            Kept,
            "record of resctrl",
            "remove the groups pinfold.* below /sys/fs/resctrl, write every way into the schemata "
            "there, and remove the file",
            error=CacheError,
        )
        self._kept: Kept | None = None

    @property
    def kept(self) -> Kept:
        """What is on record; raises CacheError."""
        if self._kept is None:
            self._kept = self._file.load() or Kept()
        return self._kept

    def keep(self, kept: Kept) -> None:
        """Have this on record; raises CacheError."""
        if kept == self._kept:
            return
        if kept.is_empty:
            self._file.remove()
        else:
            # It speaks of what the kernel forgets with the machine: no power cut matters.
            self._file.save(
                Kept(
                    boot=boot_id(),
                    groups=kept.groups,
                    before=kept.before,
                    written=kept.written,
                    next_written=kept.next_written,
                    mounted=kept.mounted,
                ),
                sync=False,
            )
        self._kept = kept
