"""What lists and watches tell, as news of one object after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from pinfold.ports.kubernetes import Change, Changed, Kind, Listed

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Feed(Generic[T, K]):
    """Who follows objects hears of each that changed, and of each that a new list does not have.

    Args:
        key: which object it is.
        known: those that are known now.
    """

    def __init__(self, key: Callable[[T], K], known: Callable[[], Iterable[K]]) -> None:
        self._key = key
        self._known = known
        self._listed: set[K] = set()

    def news(self, change: Change[T]) -> Iterator[tuple[K, T | None]]:
        """Yield what there is now, by key; None: it is there no more."""
        match change:
            case Listed():
                if change.is_first:
                    self._listed.clear()
                for one in change.objects:
                    key = self._key(one)
                    self._listed.add(key)
                    yield key, one
                if change.is_last:
                    gone = [key for key in self._known() if key not in self._listed]
                    yield from ((key, None) for key in gone)
                    self._listed.clear()
            case Changed(kind=Kind.DELETED):
                yield self._key(change.object), None
            case Changed():
                yield self._key(change.object), change.object
