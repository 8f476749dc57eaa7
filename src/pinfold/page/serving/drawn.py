"""How the node is drawn now, as the messages that tell browsers."""

from __future__ import annotations

import secrets
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from pinfold.documents.live.event import Event, Whole
from pinfold.documents.live.following import apply
from pinfold.documents.live.scene import Scene
from pinfold.documents.observation import Observation
from pinfold.formats.event_stream import Message, written
from pinfold.views.scene import SceneMaker
from pinfold.web.answers import encoded

NOTHING: Final = 0


class Seen(Struct):
    """What a browser has been told, each by its number; it begins with nothing.

    Attributes:
        scenes: of the newest scene.
        boxes: of the boxes of the machine.
        since: of the scene from which on nothing was forgotten.
        observed: of what containers and CPUs did.
        away: why it was told that the agent is away; "" where it is there.
    """

    scenes: int = NOTHING
    boxes: int = NOTHING
    since: int = NOTHING
    observed: int = NOTHING
    away: str = ""


class Drawn:
    """Follows the events of an agent.

    A scene replaces the one before it, so whoever is late gets the newest only, and nothing is kept
    for him.  Each message is made once for all, and when the first needs it.  Its id is that of the
    scene: what else is told is little, and is told again to who comes back.

    Attributes:
        whole: what there is; None before the first event.
        scene: how it is drawn.
        problem: why the agent is away; "" while it is there.
    """

    def __init__(self) -> None:
        self._maker = SceneMaker()
        self.whole: Whole | None = None
        self.scene: Scene | None = None
        self.problem = ""
        self._run = secrets.token_hex(4)
        self._at = 0.0
        self._now = Seen()
        self._observed: Observation | None = None
        self._messages: dict[str, bytes] = {}

    def take(self, event: Event) -> None:
        """The agent has told this.

        Raises:
            MachineError: its machine is not understood here.
        """
        if event.observed is not UNSET:
            self._observed = event.observed
            self._now.observed += 1
            self._messages.pop("observed", None)
        elif event.whole is not UNSET:
            self._draw(event.whole, event.at)
            self._now.since = self._now.scenes
        elif self.whole is None:
            return
        else:
            self._draw(apply(self.whole, event), event.at)
        self._at = event.at
        self.problem = ""

    def _draw(self, whole: Whole, at: float) -> None:
        scene = self._maker.scene(whole, at)
        now = self._now
        now.scenes += 1
        if self.scene is None or self.scene.root != scene.root:
            now.boxes = now.scenes
        self.whole, self.scene = whole, scene
        self._messages = {}

    def is_away(self, problem: str) -> None:
        """The agent does not answer, for this reason."""
        self.problem = problem
        self._messages.pop("away", None)

    def forget(self) -> None:
        """Begin anew: what was told is too old."""
        self.whole = self.scene = self._observed = None
        self.problem = ""
        self._messages = {}

    def seen_by(self, last_id: str) -> Seen:
        """What a browser has seen that comes back with this ``Last-Event-ID``."""
        if self.scene is None or last_id != self._id:
            return Seen()
        return replace(self._now, observed=NOTHING)

    @property
    def _id(self) -> str:
        return f"{self._run}-{self._now.scenes}"

    def news(self, seen: Seen) -> list[bytes]:
        """The messages for a browser that has seen that; from then on it has seen these, too.

        All of them are of this moment, however long it takes to send them.
        """
        now, found = self._now, list[bytes]()
        if self.scene is not None:
            if seen.scenes < now.scenes:
                begins = seen.since < now.since
                has_boxes = seen.boxes == now.boxes and not begins
                scene = replace(self.scene, root=UNSET) if has_boxes else self.scene
                found.append(self._message("whole" if begins else "changed", scene=scene))
            if self._observed is not None and seen.observed < now.observed:
                found.append(self._message("observed", observed=self._observed))
            seen.scenes, seen.boxes = now.scenes, now.boxes
            seen.since, seen.observed = now.since, now.observed
        if self.problem and seen.away != self.problem:
            found.append(self._message("away", problem=self.problem))
        seen.away = self.problem
        return found

    def _message(
        self,
        kind: str,
        *,
        scene: Scene | UnsetType = UNSET,
        observed: Observation | UnsetType = UNSET,
        problem: str | UnsetType = UNSET,
    ) -> bytes:
        name = kind if scene is UNSET or scene.root is UNSET else f"{kind} with boxes"
        if name not in self._messages:
            event = Event(
                id=self._id,
                at=self._at,
                kind=kind,
                scene=scene,
                observed=observed,
                problem=problem,
            )
            self._messages[name] = written(Message(event.id, kind, encoded(event)))
        return self._messages[name]
