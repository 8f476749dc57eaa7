"""The logs of containers over the API, as ``kubectl logs`` has them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pinfold.logs.layout import attempts
from pinfold.logs.reading import LogOptions, read_log
from pinfold.node.pods.manager import FOREGROUND
from pinfold.node.view import Reader
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PodRecord
from pinfold.ports.runtime import ContainerState
from pinfold.web.answers import Refusal
from pinfold.web.backend import PodBackend
from pinfold.web.limited_connection import UNHURRIED
from pinfold.web.requests import flag, seconds, whole_number


class _Wanted(Struct, frozen=True):
    """One attempt of a container."""

    file: Path
    has_ended: Callable[[], bool]


async def pod_log(
    request: Request,
    books: Reader,
    pods: PodBackend | None,
    uid: str,
    containers: tuple[tuple[str, str], ...],
) -> Response:
    """Answer with the log of one container.

    Args:
        request: with the parameters of the Kubernetes API.
        books: the node.
        pods: who runs its pods; None: a kubelet.
        uid: the pod.
        containers: name and kind of each container of the pod.

    Raises:
        Refusal: there is no such container, or nothing of it.
    """
    follow = flag(request, "follow") and request.method != "HEAD"
    since = seconds(request, "sinceSeconds")
    options = LogOptions(
        follow=follow,
        tail=whole_number(request, "tailLines"),
        since=None if since is None else time.time() - since,
        timestamps=flag(request, "timestamps"),
    )
    active = books.view.pods.active.get(uid)
    record = books.view.pods.ended[uid] if active is None else active.record
    name = _container(record, containers, request.query_params.get("container", ""))
    wanted = _find(books, pods, record, name, previous=flag(request, "previous"))
    # Somebody who reads in a pager takes his time.
    request.scope[UNHURRIED] = True
    return StreamingResponse(
        read_log(wanted.file, options, wanted.has_ended), media_type="text/plain"
    )


def _container(record: PodRecord, containers: tuple[tuple[str, str], ...], asked: str) -> str:
    """The container that is asked for; the texts are those of the Kubernetes API."""
    names = [name for name, _ in containers]
    if asked:
        if asked not in names:
            raise Refusal(
                400,
                f"container {asked} is not valid for pod {record.name}",
                f"it has {', '.join(names)}",
            )
        return asked
    mains = [name for name, kind in containers if kind == "container"]
    inits = [name for name, kind in containers if kind != "container"]
    if len(mains) == 1 and not inits:
        return mains[0]
    more = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
    raise Refusal(
        400,
        f"a container name must be specified for pod {record.name}, choose one of: "
        f"[{' '.join(mains)}]{more}",
        "name it with -c",
    )


def _find(
    books: Reader, pods: PodBackend | None, record: PodRecord, name: str, *, previous: bool
) -> _Wanted:
    if pods is None:
        raise Refusal(
            400, "these containers are a kubelet's, and so are their logs", "kubectl logs"
        )
    logs = pods.logs
    if record.source == FOREGROUND or logs is None:
        raise Refusal(
            400,
            f"nothing is kept of what container {name} of pod {record.name} writes",
            "it goes where the output of its pinfold run goes",
        )
    folder = logs.folder(record) / name
    key = ContainerKey(record.uid, name)
    life = pods.life(record.uid)
    status = None if life is None else books.statuses.get(key)
    # A runtime may count one more after a crash.
    there = attempts(folder)
    current = max([record.restarts.get(name, 0), *there])
    if previous:
        before = [attempt for attempt in there if attempt < current]
        if not before:
            raise Refusal(
                400,
                f"previous terminated container {name} in pod {record.name} not found",
                "leave --previous out",
            )
        return _Wanted(folder / f"{before[-1]}.log", lambda: True)
    if status is None and name not in record.exit_codes and not there:
        state = "waiting to start" if life is not None else "not there: the pod was not started"
        why = f": {record.reason}" if record.reason else ""
        raise Refusal(
            400, f"container {name} in pod {record.name} is {state}{why}", "see pinfold status"
        )

    def has_ended() -> bool:
        if life is None or life.gone.is_set():
            return True
        now = books.statuses.get(key)
        return now is None or now.attempt > current or now.state is ContainerState.EXITED

    return _Wanted(folder / f"{current}.log", has_ended)
