"""The plugin: finds the runtime's NRI socket, registers, and does so again when it is gone.

What the runtime does without a plugin (before it registers, after it was too slow) it is told of by
Synchronize, which follows each registration.  Source: the Node Resource Interface, ``v1alpha1``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from msgspec import Struct

from pinfold.adapters.nri import nri_pb2 as wire
from pinfold.adapters.nri.conversation import Conversation
from pinfold.adapters.nri.counters import PluginCounters
from pinfold.adapters.nri.session import Session
from pinfold.adapters.nri.updates import Updates
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerUpdate, RuntimeEvents
from pinfold.retry.backoff import Backoff

DEFAULT_SOCKET: Final = Path("/var/run/nri/nri.sock")
"""Where containerd and CRI-O listen unless they are told otherwise."""

_RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
_ENABLE_NRI: Final = (
    "start the runtime with NRI: containerd 1.7 has it off, set disable = false under"
    ' [plugins."io.containerd.nri.v1.nri"] in /etc/containerd/config.toml, containerd 2 has it on'
    " unless that says disable = true; CRI-O: enable_nri = true under [crio.nri]"
)


class PluginSettings(Struct, frozen=True):
    """Where the plugin registers, as what, and how long it waits, in seconds.

    ``name`` and ``index`` (two digits) are what the runtime calls the plugin; of several plugins
    the lowest index is asked first.  ``retry`` to ``longest_retry``: before it connects again;
    ``after_refusal``: before it registers again where a runtime did not take it; ``registration``:
    for the answer to RegisterPlugin; ``synchronize``: until it says that a runtime took it and went
    silent; ``write``: for a runtime that takes nothing off the socket; ``patience``: how long a
    change waits for a question of the runtime to be answered (a fraction of the runtime's time-out,
    which is 2 s unless configured); ``pause``: how long it must have asked nothing before.

    Raises:
        ValueError: a name or an index that no runtime takes.
    """

    socket: Path = DEFAULT_SOCKET
    name: str = "pinfold"
    index: str = "90"
    retry: float = 0.05
    longest_retry: float = 0.5
    after_refusal: float = 5.0
    registration: float = 10.0
    synchronize: float = 30.0
    write: float = 10.0
    patience: float = 0.5
    pause: float = 0.01

    def __post_init__(self) -> None:
        if re.fullmatch(r"[0-9]{2}", self.index) is None:
            raise ValueError(f"NRI plugin index {self.index!r}: give two digits, 00 to 99")
        if re.fullmatch(r"[A-Za-z0-9_-]+", self.name) is None:
            raise ValueError(f"NRI plugin name {self.name!r}: give letters, digits, - and _")


_DEFAULT: Final = PluginSettings()


class NriPlugin:
    """An NRI plugin, and the record of the runtime that it is registered with.

    ``events`` is asked and told what the runtime does, one call at a time, in order.  ``report`` is
    told each problem once, in words for the administrator; ``taken`` the runtime's name and version
    whenever one has taken the plugin and knows the answer to Synchronize.
    """

    def __init__(
        self,
        events: RuntimeEvents,
        settings: PluginSettings = _DEFAULT,
        *,
        report: Callable[[str], None],
        taken: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._events = events
        self._tell = report
        self._taken = taken
        self._settings = settings
        self._socket = settings.socket
        self.counters = PluginCounters()
        self._updates = Updates(
            self.counters, report, patience=settings.patience, pause=settings.pause
        )
        self._connected = False
        self._runtime = ""
        self._problem = "not started"
        self._told = ""
        self._session: Session | None = None
        self._misses = 0

    @property
    def connected(self) -> bool:
        """Whether a runtime has taken the plugin and knows the answer to Synchronize."""
        return self._connected

    @property
    def runtime(self) -> str:
        """Name and version of the runtime, as it says; "" before the first has registered us."""
        return self._runtime

    @property
    def problem(self) -> str:
        """Why the plugin is not connected; "" while it is."""
        return "" if self._connected else self._problem

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        """Change containers, in the runtime's record and thereby in their cgroups.

        Within a call to the events nothing can be changed, the runtime waits for the answer: the
        change is queued until that is out, what then fails is reported, and the result is empty.
        Anywhere else the change is made when this returns.  A runtime says nothing of ids that it
        does not know.

        Returns:
            The ids that the runtime says it could not change.

        Raises:
            RuntimeFailedError: no runtime is connected, it answers with an error (containers before
                the one that it refuses may have been changed) or not at all, or it waits for an
                answer for so long that the change was put off or dropped; the text says which.
        """
        return await self._updates.send(updates)

    def register_again(self, why: str) -> bool:
        """Leave the runtime and register anew, so that it tells of everything there is.

        Returns:
            Whether that was done: not while it waits for an answer, nor without a connection.
        """
        session = self._session
        if session is None or not self._connected or session.busy:
            return False
        session.leave(why)
        return True

    async def run(self) -> NoReturn:
        """Be a plugin of whatever runtime is there, until cancelled.

        A request that is being worked on is answered first.
        """
        backoff = Backoff(self._settings.retry, self._settings.longest_retry)
        try:
            while True:
                registered = self.counters.registrations
                refused = await self._once()
                if self.counters.registrations > registered:
                    backoff.well()
                pause = backoff.failed()
                await asyncio.sleep(self._settings.after_refusal if refused else pause)
        finally:
            self._problem = "stopped"
            await self._updates.close()

    async def _once(self) -> bool:
        """One connection; whether the runtime did not take the plugin."""
        try:
            session = await Session.connect(self._socket, write_timeout=self._settings.write)
        except OSError as error:
            self.counters.failed_connects += 1
            self._report(str(_unreachable(self._socket, error)))
            return False
        conversation = Conversation(
            self._events,
            self._updates,
            self.counters,
            report=self._tell,
            on_synchronized=lambda: self._take(session, conversation),
            # containerd with NRI before 0.7 keeps the connection then, and tells nothing any more.
            on_missed=lambda: self._miss(session),
        )
        self._session = session
        serving = asyncio.create_task(session.serve(conversation))
        try:
            if not await self._register(session):
                return True
            await self._warn_of_silence(serving)
            why = await serving
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            await session.close()
            self._session = None
            lost = self._connected
            self._connected = False
            self._updates.connected(None)
        if lost:
            self.counters.disconnects += 1
        self._report(f"{self._socket}: {why}; connecting again")
        # After the first time it goes faster: what is decided already is only looked at.
        return not lost and self._misses != 1

    async def _register(self, session: Session) -> bool:
        request = wire.RegisterPluginRequest(
            plugin_name=self._settings.name, plugin_idx=self._settings.index
        )
        try:
            await session.call(
                _RUNTIME,
                "RegisterPlugin",
                request.SerializeToString(),
                self._settings.registration,
            )
        except RuntimeFailedError as error:
            self.counters.failed_connects += 1
            self._report(
                f"{error}: plugin {self._settings.index}-{self._settings.name} was not registered"
            )
            return False
        return True

    async def _warn_of_silence(self, serving: asyncio.Task[str]) -> None:
        await asyncio.wait({serving}, timeout=self._settings.synchronize)
        if not serving.done() and not self._connected:
            self._report(
                f"{self._socket}: the runtime took the plugin"
                f" {self._settings.synchronize:g} s ago and has not synchronized it yet"
                " (it may still be creating pods; see its log)"
            )

    def _take(self, session: Session, conversation: Conversation) -> None:
        self._runtime = conversation.runtime
        self._connected = True
        self._misses = 0
        self._told = ""
        self.counters.registrations += 1
        self._updates.connected(session)
        self._taken(self._runtime)

    def _miss(self, session: Session) -> None:
        self._misses += 1
        session.leave("the runtime did not wait for the answer to Synchronize, and tells nothing")

    def _report(self, problem: str) -> None:
        self._problem = problem
        if problem != self._told:
            self._told = problem
            self._tell(problem)


def _unreachable(socket: Path, error: OSError) -> RuntimeFailedError:
    match error:
        case FileNotFoundError():
            return RuntimeFailedError(f"{socket}: no such socket", _ENABLE_NRI)
        case PermissionError():
            return RuntimeFailedError(
                f"{socket}: permission denied", "run as root, or as who may write the socket"
            )
        case ConnectionRefusedError():
            return RuntimeFailedError(
                f"{socket}: nobody listens", "the runtime has ended; start it"
            )
        case _:
            return RuntimeFailedError(f"{socket}: {error.strerror or error}")
