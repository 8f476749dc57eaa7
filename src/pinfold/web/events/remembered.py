"""Documents of a node that is looked at often: only what has changed is made anew."""

from __future__ import annotations

from operator import is_

from msgspec import Struct

from pinfold.documents import status as form
from pinfold.documents.live.following import moved_with_the_pool
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.view import Reader, View
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PodRecord
from pinfold.web.documents import Documents
from pinfold.web.pod_shape import kinds


class _Known(Struct):
    """The document of a pod, and of what it was made: the values themselves, never their like."""

    pod: AdmittedPod
    keys: tuple[ContainerKey, ...]
    of: tuple[object, ...]
    pool: str
    document: form.Pod


class RememberedDocuments(Documents):
    """What :class:`Documents` says, without the load of containers.

    Each change of the books replaces what it changes, and nothing else, so who is made of the same
    objects as before is as before.  ``made`` counts the documents of pods that were made.
    """

    def __init__(self, books: Reader) -> None:
        super().__init__(books)
        self._known: dict[str, _Known] = {}
        self._over: dict[str, tuple[PodRecord, form.Pod]] = {}
        self._of_all: tuple[object, ...] = ()
        self.made = 0

    @property
    def remembered(self) -> set[str]:
        """The uids of the pods whose documents it has."""
        return {*self._known, *self._over}

    def pods(self) -> list[form.Pod]:
        """All pods, as :meth:`Documents.pods` has them."""
        view = self._books.view
        if (of_all := _of_all(view)) != self._of_all:
            self._of_all = of_all
            self._known.clear()
        found = super().pods()
        table = view.pods
        if len(self._known) > len(table.active):
            self._known = {u: one for u, one in self._known.items() if u in table.active}
        if len(self._over) > len(table.ended):
            self._over = {u: one for u, one in self._over.items() if u in table.ended}
        return found

    def _active(self, pod: AdmittedPod, pool: str) -> form.Pod:
        known = self._known.get(pod.uid)
        if known is None or known.pod is not pod:
            keys = tuple(pod.key(container) for container, _ in kinds(pod.workload.pod))
            return self._made(pod, keys, self._made_of(pod, keys), pool)
        of = self._made_of(pod, known.keys)
        if len(of) != len(known.of) or not all(map(is_, of, known.of)):
            return self._made(pod, known.keys, of, pool)
        if known.pool != pool:
            if pod.record.bubble:
                # What is left of a bubble is not exclusive either, and may be called like the pool.
                return self._made(pod, known.keys, of, pool)
            (known.document,) = moved_with_the_pool((known.document,), known.pool, pool)
            known.pool = pool
        return known.document

    def _made(
        self, pod: AdmittedPod, keys: tuple[ContainerKey, ...], of: tuple[object, ...], pool: str
    ) -> form.Pod:
        self.made += 1
        document = super()._active(pod, pool)
        self._known[pod.uid] = _Known(pod, keys, of, pool, document)
        return document

    def _made_of(self, pod: AdmittedPod, keys: tuple[ContainerKey, ...]) -> tuple[object, ...]:
        """What its document is made of beside the pod, the pool, and what is the same for all."""
        state, uid = self._books.view.state, pod.uid
        return (
            state.ledger.assignments.get(uid),
            state.ledger.idle.get(uid),
            None if state.memory is None else state.memory.assignments.get(uid),
            state.devices.allocations.pods.get(uid),
            *map(self._books.statuses.get, keys),
        )

    def _ended(self, record: PodRecord) -> form.Pod:
        known = self._over.get(record.uid)
        if known is None or known[0] is not record:
            self.made += 1
            known = self._over[record.uid] = record, super()._ended(record)
        return known[1]


def _of_all(view: View) -> tuple[object, ...]:
    """What the document of every pod is made of; whether there is a pool, but not which."""
    return view.state.offline, view.lent, view.move, view.settings, bool(view.pool)
