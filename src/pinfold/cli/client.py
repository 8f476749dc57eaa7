"""The commands' side of the agent's local API."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click
import msgspec

from pinfold.cli.output import F, InputError, Refused
from pinfold.cli.progress_line import progress_line
from pinfold.core.pod.manifest.size import MANIFEST_BYTES
from pinfold.core.values.duration import DurationError, parse_duration
from pinfold.linux.own_places import SOCKET_VARIABLE, default_socket

_T = TypeVar("_T")

_REFUSED: Final = 400
_NO_METHOD: Final = 405
_NO_PATH: Final = "there is nothing at "
"""How an agent begins to say that it has no such operation: it is of another version."""
_PIECE: Final = 1 << 16
_NO_AGENT: Final = (
    "start one with: pinfold agent (or systemctl start pinfold); another socket is given with "
    f"--socket or {SOCKET_VARIABLE}"
)
_PLUGIN: Final = "kubectl"
"""With what the program's name begins where kubectl has started it: on a laptop, as a rule."""


_PAUSE: Final = 0.02
_BUSY_PATIENCE: Final = 30.0
"""Seconds for an agent on a busy machine to say that it is there."""


class NoAgentError(InputError):
    """No agent listens."""


class RefusedError(Refused):
    """The agent refused, with this status of HTTP; 0 where there is none.

    ``problem`` is what it says, and ``remedy`` what helps, "" where nothing does; the message is
    both.
    """

    def __init__(self, status: int, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem} ({remedy})" if remedy else problem)
        self.status = status
        self.problem = problem
        self.remedy = remedy


def socket_option(command: F) -> F:
    """The ``--socket`` option."""
    return click.option(
        "--socket",
        metavar="PATH",
        envvar=SOCKET_VARIABLE,
        default=default_socket,
        help=f"The agent's socket. Without it: {SOCKET_VARIABLE}, else /run/pinfold/pinfold.sock.",
    )(command)


class Seconds(click.FloatRange):
    """A number of seconds, or a duration such as ``1m30s``; ``nan`` and ``inf`` are none."""

    name = "number of seconds"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Read it; raises BadParameter."""
        text = str(value)
        try:
            number = parse_duration(text if text[-1:].isalpha() else f"{text}s")
        except DurationError:
            self.fail(f"{text[:40]!r} is no number of seconds, such as 5 or 1m30s.", param, ctx)
        return float(super().convert(number, param, ctx))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("pinfold", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            try:
                self.sock.connect(self._path)
            except BlockingIOError:
                # So many wait to be let in that no more can; a socket with a timeout does not wait.
                if deadline is None or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)
            else:
                return


class Client:
    """Asks the agent at a socket; one connection for each request.

    ``timeout`` is seconds to wait for an answer; None for ever (a pod may take its grace period).
    """

    def __init__(self, path: str, timeout: float | None = None) -> None:
        self._path = path
        self._timeout = timeout
        # Who asks may be a thread later, which knows of no command.
        self._elsewhere = _elsewhere()

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401 - any document
        """A document."""
        return self._ask("GET", _with_query(path, query))

    def read(self, path: str, kind: type[_T], **query: object) -> _T:
        """A document, taken apart; raises as :meth:`understood`."""
        return self.understood(self.get(path, **query), kind)

    def understood(self, told: object, kind: type[_T]) -> _T:
        """What was answered, taken apart; what a newer agent has added to it is passed over.

        Raises:
            RefusedError: the agent is of a version that makes others.
        """
        try:
            return msgspec.convert(told, kind)
        except msgspec.ValidationError as error:
            raise RefusedError(
                0,
                f"this is no {kind.__name__} that this program understands: {error}; the agent is "
                f"pinfold {self._version()}: ask it with a program of that version",
            ) from None

    def _version(self) -> str:
        try:
            return str(self.get("/v1/status")["agent"]["version"])
        except (click.ClickException, LookupError, TypeError):
            return "of a version that it does not tell"

    def stream(self, path: str, **query: object) -> Iterator[bytes]:
        """A text, in pieces as they come."""
        connection = _UnixConnection(self._path, self._timeout)
        try:
            connection.request("GET", _with_query(path, query))
            answer = connection.getresponse()
            if answer.status >= _REFUSED:
                raise self._refused(_parsed(answer.read()), answer.status, answer.reason)
            while piece := answer.read1(_PIECE):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def post(self, path: str, document: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - any document
        """Send a document, get one."""
        return self._ask("POST", path, document)

    def patch(self, path: str, document: Mapping[str, Any], **query: object) -> Any:  # noqa: ANN401 - any document
        """Change a part of something, get what became of it."""
        return self._ask("PATCH", _with_query(path, query), document)

    def delete(self, path: str, **query: object) -> None:
        """Remove something."""
        self._ask("DELETE", _with_query(path, query))

    def _ask(self, method: str, path: str, document: object = None) -> Any:  # noqa: ANN401 - any document
        connection = _UnixConnection(self._path, self._timeout)
        body = None if document is None else msgspec.json.encode(document)
        headers = {} if body is None else {"Content-Type": "application/json"}
        if body is not None and len(body) > MANIFEST_BYTES:
            raise RefusedError(
                413, f"the manifest has {len(body)} bytes; an agent takes {MANIFEST_BYTES} at most"
            )
        try:
            # Who refuses a request may do so before it is all sent.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, headers)
            with progress_line("waiting for the agent"):
                answer = connection.getresponse()
                text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        content = _parsed(text)
        if answer.status >= _REFUSED:
            raise self._refused(content, answer.status, answer.reason)
        return content

    def _refused(self, content: object, status: int, reason: str) -> RefusedError:
        error = content.get("error") if isinstance(content, dict) else None
        fault = error if isinstance(error, dict) else {}
        problem = str(fault.get("message", f"the agent answered {status} {reason}"))
        remedy = str(fault.get("remedy") or "")
        if status == _NO_METHOD or problem.startswith(_NO_PATH):
            return RefusedError(
                status,
                f"the agent is pinfold {self._version()}, which cannot do this: ask it with a "
                "program of that version, or restart it with this one",
            )
        if remedy.startswith("GET /v1/"):  # an older agent, which speaks to programs only
            remedy = "pinfold status shows the pods"
        return RefusedError(status, problem, "" if remedy in problem else remedy)

    def _unreachable(self, error: Exception) -> click.ClickException:
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return NoAgentError(f"no agent listens on {self._path}; {self._elsewhere}{_NO_AGENT}")
        if isinstance(error, PermissionError):
            return NoAgentError(f"{self._path}: only the agent's user and root may ask it")
        if isinstance(error, TimeoutError) and self._timeout is not None:
            message = f"{self._path}: the agent did not answer within {self._timeout:g} s"
            return RefusedError(0, message)
        return RefusedError(0, f"{self._path}: the agent did not answer: {error!r}")


def _elsewhere() -> str:
    """Where else a command that kubectl has started may ask; "" where there is no such way."""
    context = click.get_current_context(silent=True)
    if context is None or not (context.find_root().info_name or "").startswith(_PLUGIN):
        return ""
    options = {one.name for one in context.command.params}
    if "agents_namespace" in options:
        return "ask the agent of a node of the cluster with --node NAME; on the node itself, "
    if "from_cluster" in options:
        return "read a pod of the cluster with --from-cluster; on the node itself, "
    return "call it on the node itself, or there "


def _with_query(path: str, query: Mapping[str, object]) -> str:
    given = "&".join(f"{k}={quote(str(v), safe='')}" for k, v in query.items() if v is not None)
    return f"{path}?{given}" if given else path


def _parsed(text: bytes) -> Any:  # noqa: ANN401 - any document
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text.decode(errors="replace")


def pod_path(name: str, within: str | None = None) -> str:
    """The API's path of a pod that a user names ``pod/NAME``, ``NAMESPACE/NAME`` or ``NAME``.

    A uid may stand for the name; a name with slashes, of an older agent, needs its namespace.
    ``within`` is the namespace of a name that says none, without which it is ``default``.
    """
    plain = name.removeprefix("pod/").removeprefix("pods/")
    namespace, slash, rest = plain.partition("/")
    if not slash:
        namespace, rest = within or "default", plain
    if not namespace or not rest:
        raise InputError(f"{name!r} names no pod; write pod/NAME, NAMESPACE/NAME or NAME")
    return f"{quote(namespace, safe='')}/{quote(rest, safe='')}"


def agent_runs(path: str) -> bool:
    """Whether an agent answers; False where there is no socket.

    Raises:
        click.ClickException: there is a socket, and nobody answers: of an agent that was killed, is
            being restarted, or belongs to somebody else.  Its pods run on, on CPUs of their own.
    """
    try:
        Client(path, timeout=_BUSY_PATIENCE).get("/healthz")
    except click.ClickException:
        try:
            os.lstat(path)
        except PermissionError:
            pass
        except (OSError, ValueError):
            return False
        raise
    return True
