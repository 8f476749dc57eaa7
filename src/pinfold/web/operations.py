"""The table of the API's operations; routes and the OpenAPI document are made of it."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from pinfold.core.pod.manifest.size import MANIFEST_BYTES
from pinfold.documents.api import (
    AnyObject,
    DecidedPod,
    Drifts,
    Exit,
    History,
    Manifest,
    ObjectName,
    OpenAPI,
    PodDocument,
    PodList,
    Resize,
    ResizeAnswer,
    Run,
)
from pinfold.documents.explanation import Explanation
from pinfold.documents.live.event import Event
from pinfold.documents.machine import Machine
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.node import Node
from pinfold.documents.observation import Observation
from pinfold.documents.records import Record
from pinfold.documents.status import Status
from pinfold.formats.event_stream import MEDIA_TYPE as EVENTS

JSON: Final = "application/json"
TEXT: Final = "text/plain"


class Answer(Struct, frozen=True):
    """A successful answer: a document, text of a media type (of documents, maybe), or nothing."""

    status: int
    meaning: str
    form: type[Record] | None = None
    text: str = ""


class Operation(Struct, frozen=True):
    """One method on one path.

    Attributes:
        handler: the coroutine in :class:`pinfold.web.handlers.Handlers`.
        summary: what it does, one line.
        answers: those that are no errors.
        errors: the statuses of the errors beside 400, 500 and 503, which any operation may answer.
        query: parameters of the query, keys of :data:`PARAMETERS`.
        body: the form of the request's body.
    """

    method: str
    path: str
    handler: str
    summary: str
    answers: tuple[Answer, ...]
    errors: tuple[int, ...] = ()
    query: tuple[str, ...] = ()
    body: type[Record] | None = None


BODY_LIMIT: Final = MANIFEST_BYTES + 4096
"""Bytes of a request's body: a manifest, and what may stand around it."""

HISTORY_LIMIT: Final = 1000
"""Entries of the history in one answer."""

HISTORY_DEFAULT: Final = 100
"""How many there are where nobody says."""

POD: Final = "/v1/pods/{namespace}/{name}"
POD_LOG: Final = f"{POD}/log"
OBJECT: Final = "/v1/objects/{kind}/{namespace}/{name}"

OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/status",
        "status",
        "The agent, its CPUs and its pods, the ended ones too",
        (Answer(200, "the status", Status),),
    ),
    Operation(
        "GET",
        "/v1/machine",
        "machine",
        "The hardware, as pinfold topology -o json prints it",
        (Answer(200, "the machine", Machine),),
    ),
    Operation(
        "GET",
        "/v1/node",
        "node",
        "What the node has, may give and has left, in total and for each NUMA node",
        (Answer(200, "the node", Node),),
    ),
    Operation(
        "GET",
        "/v1/observation",
        "observation",
        "What containers use and wait for, and how idle each CPU is, where that is watched",
        (Answer(200, "rates of the last interval, 10 and 60 seconds", Observation),),
        query=("history",),
    ),
    Operation(
        "GET",
        "/v1/events",
        "events",
        "What changes on the node, told when it does (server-sent events)",
        (Answer(200, "the events, until the agent stops", Event, text=EVENTS),),
        query=("lastEventId",),
    ),
    Operation(
        "GET",
        "/v1/pods",
        "pods",
        "All pods in the order of their admission",
        (Answer(200, "the pods", PodList),),
    ),
    Operation(
        "POST",
        "/v1/pods",
        "create_pod",
        "Admit a pod, and start it when it is admitted",
        (
            Answer(201, "it is admitted, and its containers are being started", DecidedPod),
            Answer(
                200,
                "it is rejected (phase Rejected, with the reason), or runs already and is the same "
                "(unchanged)",
                DecidedPod,
            ),
        ),
        errors=(409, 413),
        body=Manifest,
    ),
    Operation(
        "GET",
        POD_LOG,
        "pod_log",
        "What a container has written, also one that has ended, until its pod is deleted",
        (Answer(200, "the log", text=TEXT),),
        errors=(404,),
        query=("container", "follow", "previous", "tailLines", "sinceSeconds", "timestamps"),
    ),
    Operation(
        "GET",
        POD,
        "pod",
        "One pod",
        (Answer(200, "the pod", PodDocument),),
        errors=(404,),
    ),
    Operation(
        "PATCH",
        POD,
        "resize_pod",
        "Give a running container another number of exclusive CPUs",
        (
            Answer(
                200, "it is done, or infeasible with the reason, and nothing changed", ResizeAnswer
            ),
        ),
        errors=(404, 409, 413),
        query=("wait",),
        body=Resize,
    ),
    Operation(
        "DELETE",
        POD,
        "delete_pod",
        "End a pod; answers when it is gone and its CPUs are in the shared pool",
        (Answer(204, "it is gone"),),
        errors=(404,),
        query=("grace",),
    ),
    Operation(
        "POST",
        "/v1/objects",
        "apply_object",
        "Keep an object beside the pods, such as a ResourceQuota; it holds from the next pod on",
        (Answer(200, "it is in force", ObjectName),),
        errors=(409, 413),
        body=AnyObject,
    ),
    Operation(
        "DELETE",
        OBJECT,
        "delete_object",
        "Forget such an object",
        (Answer(204, "it is gone"),),
        errors=(404, 409),
    ),
    Operation(
        "POST",
        "/v1/run",
        "run",
        "Admit a pod around a process that waits; answers when the process is on its CPUs",
        (Answer(200, "the process may go, or the pod is rejected (phase Rejected)", DecidedPod),),
        errors=(403, 409, 413),
        body=Run,
    ),
    Operation(
        "POST",
        "/v1/run/{uid}/exit",
        "report_exit",
        "Tell the exit code of such a process, which only its parent learns",
        (Answer(204, "taken note of; its CPUs are free, but where that takes seconds"),),
        errors=(404, 413),
        body=Exit,
    ),
    Operation(
        "GET",
        "/v1/rebalance",
        "would_rebalance",
        "Which moves would bring the containers to better CPUs; nothing moves",
        (Answer(200, "the moves and their price, none where nothing is better", MovePlan),),
    ),
    Operation(
        "POST",
        "/v1/rebalance",
        "rebalance",
        "Move containers to better CPUs; answers when they are there",
        (Answer(200, "the moves that were made", MovePlan),),
    ),
    Operation(
        "GET",
        "/v1/history",
        "history",
        "What was decided and repaired, newest first",
        (Answer(200, "the entries", History),),
        query=("pod", "namespace", "kind", "limit"),
    ),
    Operation(
        "GET",
        "/v1/explain/{namespace}/{name}",
        "explain",
        "The newest decision about a pod, also about one that is gone",
        (Answer(200, "as pinfold explain -o json prints it", Explanation),),
        errors=(404,),
    ),
    Operation(
        "POST",
        "/v1/reconcile",
        "reconcile",
        "Compare the kernel with the record now, and repair what drifted",
        (Answer(200, "what was found", Drifts),),
    ),
    Operation(
        "GET",
        "/healthz",
        "healthz",
        "Whether the agent's loop runs",
        (Answer(200, "ok", text=TEXT),),
    ),
    Operation(
        "GET",
        "/readyz",
        "readyz",
        "Whether pods can be admitted",
        (Answer(200, "ok", text=TEXT),),
    ),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        "Metrics in Prometheus's text format",
        (Answer(200, "the metrics", text=TEXT),),
    ),
    Operation(
        "GET",
        "/openapi.json",
        "openapi",
        "This document",
        (Answer(200, "OpenAPI 3.1", OpenAPI),),
    ),
)
