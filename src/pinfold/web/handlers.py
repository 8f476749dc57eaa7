"""What the operations of the API do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import UNSET
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pinfold.core.moves.owners import MoveError
from pinfold.documents.api import Exit, ObjectName, PodList, Resize, ResizeAnswer, Run
from pinfold.documents.status import Status
from pinfold.node.moves.moving import BusyError
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.pods.caller import Caller
from pinfold.node.pods.pod_life import PodLife
from pinfold.ports.records import HistoryEntry, ObjectKey, PodPhase
from pinfold.ports.runtime import ContainerState
from pinfold.web.answers import Document, Refusal, encoded
from pinfold.web.backend import Backend, PodBackend
from pinfold.web.changes import Changes, Patience
from pinfold.web.documents import (
    Documents,
    drifts_document,
    embedded,
    history_document,
)
from pinfold.web.events.telling import Telling
from pinfold.web.observed import observation_document
from pinfold.web.operations import OBJECT, POD, POD_LOG
from pinfold.web.pod_logs import pod_log
from pinfold.web.requests import decoded, flag, json_object, limit, seconds
from pinfold.web.resizes import answered, asked
from pinfold.web.snapshots import Snapshots

DECISIONS: Final = ("admitted", "rejected")
"""The kinds of history entries that hold a decision about a pod."""

MOST_KINDS: Final = 100
"""Kinds of entries of the history in one question."""

START_PATIENCE: Final = 30.0
"""Seconds in which a process that is taken over has to be placed."""

END_PATIENCE: Final = 3.0
"""Seconds that the report of an exit waits for the pod's end, which is quick as a rule."""

LONGEST_GRACE: Final = 10.0
"""Seconds for which an application may be told before CPUs are taken from it."""

REBALANCE_PATIENCE: Final = 10 * LONGEST_GRACE
"""Seconds beside the usual: who is in another's way is told before he goes, and the other too."""


class Handlers:
    """One coroutine for each operation, named as in :mod:`pinfold.web.operations`.

    ``snapshots`` are the answers that are shared, ``telling`` makes the events.
    """

    def __init__(self, backend: Backend, patience: Patience) -> None:
        self._backend = backend
        self._documents = Documents(backend.books, backend.observation)
        self._changes = Changes(backend.problems, patience.change)
        self.snapshots = Snapshots()
        self.telling = Telling(backend)
        self._metrics: Any = None

    # ------------------------------------------------------------------------------- the node

    async def status(self, _request: Request) -> Response:
        """The agent, its CPUs, its pods."""
        return await self._shared("status", self._status)

    def _status(self) -> Status:
        return self._documents.status(self._backend.about(), self._backend.settings())

    async def machine(self, _request: Request) -> Response:
        """The hardware."""
        return await self._shared("machine", self._backend.machine)

    async def node(self, _request: Request) -> Response:
        """Capacity and allocatable."""
        return await self._shared("node", self._backend.node)

    async def observation(self, request: Request) -> Response:
        """What containers and CPUs do."""
        observed, history = self._backend.observation, flag(request, "history")
        if observed is None:
            raise Refusal(
                503,
                "this agent does not watch what containers do",
                "set observationPeriod in the section pinfold of its configuration, such as 1s",
            )
        books = self._backend.books
        return await self._shared(
            f"observation {history}", lambda: observation_document(observed, books, history=history)
        )

    async def events(self, request: Request) -> Response:
        """What changes, as it changes."""
        return self.telling.answer(request)

    async def _shared(self, name: str, document: Callable[[], object]) -> Response:
        """An answer for all who wait for it."""
        body = await self.snapshots.get(name, lambda: encoded(document()))
        return Response(body, media_type=Document.media_type)

    async def reconcile(self, request: Request) -> Response:
        """Look at the kernel now."""
        caller = Caller(begun=True)
        drifts = await self._changes.run(self._backend.reconcile(), request=request, caller=caller)
        return Document(drifts_document(drifts))

    async def history(self, request: Request) -> Response:
        """What was decided and repaired, newest first."""
        count = limit(request)
        name = request.query_params.get("pod")
        kinds = [one for one in request.query_params.get("kind", "").split(",") if one]
        if len(kinds) > MOST_KINDS:
            raise Refusal(400, f"kind: {len(kinds)} kinds; there are fewer")
        store, within = self._backend.books.store, request.query_params.get("namespace")
        read = partial(store.history, namespace=within, kinds=kinds, limit=count)
        if name is None or "/" in name:
            entries = await read(pod=name)
        else:
            entries = await read(pod=f"default/{name}") or await read(pod=name)
        return Document(history_document(entries))

    # ----------------------------------------------------------------------------------- pods

    async def pods(self, _request: Request) -> Response:
        """All pods."""
        return await self._shared("pods", lambda: PodList(pods=self._documents.pods()))

    async def pod(self, request: Request) -> Response:
        """One pod."""
        return Document(self._documents.pod(_named(request)))

    def _pods(self) -> PodBackend:
        """Who runs pods; where a kubelet does, nothing is changed here."""
        if self._backend.pods is None:
            raise Refusal(
                503,
                "this agent looks after the containers of a kubelet",
                "create and delete pods through Kubernetes",
            )
        return self._backend.pods

    async def create_pod(self, request: Request) -> Response:
        """Admit a pod."""
        manifest = await json_object(request)
        caller = Caller()
        pods = self._pods()
        known = pods.unchanged(manifest)
        if known is None:
            admission = pods.apply(manifest, source="api", caller=caller)
            try:
                record = await self._changes.run(admission, request=request, caller=caller)
            except NameTakenError:
                # By one that was applied at the same time, and may be the same.
                known = pods.unchanged(manifest)
                if known is None:
                    raise
        if known is not None:
            notes = pods.notes(manifest)
            return Document(self._documents.decided(known, notes, unchanged=True), 200)
        status = 200 if record.phase is PodPhase.REJECTED else 201
        return Document(self._documents.decided(record, pods.notes(manifest)), status)

    async def apply_object(self, request: Request) -> Response:
        """Keep an object."""
        manifest = await json_object(request)
        caller = Caller()
        work = self._pods().apply_object(manifest, caller)
        kept = await self._changes.run(work, request=request, caller=caller)
        kind, namespace, name = kept.key
        warnings = list(kept.warnings) or UNSET
        return Document(ObjectName(kind=kind, namespace=namespace, name=name, warnings=warnings))

    async def delete_object(self, request: Request) -> Response:
        """Forget an object."""
        namespace, _, name = _named(request, OBJECT).partition("/")
        key = ObjectKey(request.path_params["kind"], namespace, name)
        caller = Caller()
        work = self._pods().delete_object(key, caller)
        try:
            await self._changes.run(work, request=request, caller=caller)
        except UnknownPodError as error:
            raise Refusal(404, str(error), "pinfold status shows the quotas") from None
        return Response(status_code=204)

    async def delete_pod(self, request: Request) -> Response:
        """End a pod."""
        name, grace = _named(request), seconds(request, "grace")
        pods, caller = self._backend.books.view.pods, Caller()
        pod = pods.active.get(pods.find(name))
        longer = grace
        if longer is None:
            longer = 0.0 if pod is None else pod.workload.grace_period
        deletion = self._pods().delete(name, grace=grace, caller=caller)
        await self._changes.run(deletion, request=request, caller=caller, longer=longer)
        return Response(status_code=204)

    async def resize_pod(self, request: Request) -> Response:
        """Give a running container another number of CPUs."""
        name, wait = _named(request), flag(request, "wait", default=True)
        container, cpus = asked(await decoded(request, Resize))
        pods, caller = self._pods(), Caller()

        async def whole() -> ResizeAnswer:
            answer = await pods.resize(name, container, cpus, caller=caller)
            if wait and answer.moving is not None:
                ended = await answer.moving.ended()
                if ended.replaced:
                    raise Refusal(409, f"another resize of {answer.pod} has taken its place")
                if not ended.done:
                    raise Refusal(503, f"the resize was undone: {ended.problem}")
            return answered(answer)

        work = self._changes.run(whole(), request=request, caller=caller, longer=LONGEST_GRACE)
        return Document(await work)

    async def pod_log(self, request: Request) -> Response:
        """What a container has written."""
        backend = self._backend
        uid = backend.books.view.pods.find(_named(request, POD_LOG))
        containers = self._documents.containers(uid)
        return await pod_log(request, backend.books, backend.pods, uid, containers)

    async def explain(self, request: Request) -> Response:
        """Why a pod was decided about as it was."""
        name = _named(request)
        entry = await self._newest_decision(name)
        document = None if entry is None else embedded(entry.document)
        if entry is None or document is None:
            raise Refusal(
                404,
                f"no decision about a pod {name} is recorded",
                "pinfold history shows what is",
            )
        return Document(self._documents.explained(entry, document, self._backend.about().control))

    async def _newest_decision(self, name: str) -> HistoryEntry | None:
        # A pod that drifts has many entries after the one that is looked for.
        count = 50
        while True:
            entries = await self._backend.books.store.history(pod=name, limit=count)
            for entry in entries:
                if entry.kind in DECISIONS:
                    return entry
            if len(entries) < count:
                return None
            count *= 10

    # ---------------------------------------------------------------------------------- moves

    async def would_rebalance(self, _request: Request) -> Response:
        """What would move."""
        with _move_refusals():
            return Document(self._backend.rebalancing.would_move())

    async def rebalance(self, request: Request) -> Response:
        """Move whoever would sit better elsewhere."""
        caller = Caller()
        with _move_refusals():
            work = self._backend.rebalancing.rebalance(caller.begin)
            document, problem = await self._changes.run(
                work, request=request, caller=caller, longer=REBALANCE_PATIENCE
            )
        if problem:
            raise Refusal(503, f"the moves were undone: {problem}", "see the agent's log")
        return Document(document)

    # ------------------------------------------------------- processes that somebody else starts

    async def run(self, request: Request) -> Response:
        """Admit a pod around a process that is held back, and answer when it may go."""
        body = await decoded(request, Run)
        manifest, pid = body.manifest, body.pid
        if pid == os.getpid():
            raise Refusal(400, f"pid: {pid} is no process to run", "send the pid of a child")
        _check_one_process(manifest)
        pods = self._pods()
        held = pods.process_of(request.state.peer, pid)
        caller = Caller()
        admission = pods.apply(manifest, source="run", held=held, caller=caller)
        record = await self._changes.run(admission, request=request, caller=caller)
        pod = pods.life(record.uid)
        if pod is not None:
            await self._placed(pod, pid)
        return Document(self._documents.decided(record, pods.notes(manifest)))

    async def _placed(self, pod: PodLife, pid: int) -> None:
        """Return when the process is on its CPUs, or the pod has ended; raises Refusal."""
        started = asyncio.create_task(pod.started.wait())
        gone = asyncio.create_task(pod.gone.wait())
        try:
            await asyncio.wait(
                {started, gone}, timeout=START_PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            seen = self._backend.books.containers.seen.of_pod(pod.uid)
            if any(status.state is ContainerState.RUNNING for status in seen):
                return
            # The worker goes on past a container that could not be started; its pod then ends.
            await asyncio.wait({gone}, timeout=START_PATIENCE)
        finally:
            started.cancel()
            gone.cancel()
        what = f"process {pid} was not taken over by pod {pod.name}"
        if pod.failure:
            raise Refusal(503, f"{what}: {pod.failure}")
        raise Refusal(503, what, "see that it still waits; the agent's log says what failed")

    async def report_exit(self, request: Request) -> Response:
        """Take the exit code of such a process from its parent, and answer when its pod is gone.

        So whoever runs one command after the other finds the CPUs of the first free.
        """
        code = (await decoded(request, Exit)).code
        pods = self._pods()
        pod = pods.life(self._backend.books.view.pods.find(request.path_params["uid"]))
        if pod is not None:
            pod.report_exit(code)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pod.gone.wait(), END_PATIENCE)
        return Response(status_code=204)

    # -------------------------------------------------------------------------------- watching

    async def healthz(self, _request: Request) -> Response:
        """The loop runs."""
        return PlainTextResponse("ok")

    async def readyz(self, _request: Request) -> Response:
        """Pods can be admitted."""
        problems = self._backend.problems()
        if problems:
            raise Refusal(503, "; ".join(problems), "wait, or see the agent's log")
        return PlainTextResponse("ok")

    async def metrics(self, _request: Request) -> Response:
        """Counters for Prometheus."""
        if self._metrics is None:
            from pinfold.web.metrics import Metrics  # noqa: PLC0415 - 13 ms

            backend = self._backend
            plugins = None if backend.pods is None else backend.pods.plugins
            self._metrics = Metrics(backend.books, backend.figures, plugins, backend.settings)
        text = await self.snapshots.get("metrics", self._metrics.text)
        return Response(text, media_type=self._metrics.media_type)

    async def openapi(self, _request: Request) -> Response:
        """This API."""
        from pinfold.web.openapi import openapi_document  # noqa: PLC0415 - 0.5 ms: seldom asked for

        return Document(openapi_document())


@contextlib.contextmanager
def _move_refusals() -> Iterator[None]:
    try:
        yield
    except MoveError as error:
        raise Refusal(400, error.problem, error.remedy) from None
    except BusyError as error:
        raise Refusal(503, str(error), "ask again when it is over") from None


def _named(request: Request, path: str = POD) -> str:
    """The pod of a path; a slash in its name is written ``%2F``, others make another path."""
    if request.scope.get("raw_path", b"").count(b"/") != path.count("/"):
        raise HTTPException(404)
    return f"{request.path_params['namespace']}/{request.path_params['name']}"


def _check_one_process(manifest: Mapping[str, Any]) -> None:
    """One process is one container, which is not started again.

    Whatever else is wrong with the manifest is found by the one who reads it.
    """
    spec = manifest.get("spec")
    if not isinstance(spec, dict):
        return
    if spec.get("restartPolicy") != "Never":
        raise Refusal(
            400, "spec.restartPolicy: a process of somebody else is not restarted", "write Never"
        )
    lists = [spec.get("initContainers"), spec.get("containers")]
    count = sum(len(containers) for containers in lists if isinstance(containers, list))
    if count != 1:
        raise Refusal(400, f"spec: one process is one container, not {count}")
