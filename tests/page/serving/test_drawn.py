"""What a browser has been told is what there is, whenever it comes and however slowly it reads."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from pinfold.documents.live.event import Changed, Event, Whole
from pinfold.documents.live.scene import Scene, SceneBox
from pinfold.formats.event_stream import EventStream
from pinfold.page.serving.compression import STREAM_BEGINS, block, compressed
from pinfold.page.serving.drawn import Drawn, Seen
from pinfold.web.answers import encoded
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import served, whole_of

MACHINES = ("1s2c2t", "2s2c1t")


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[Whole]:
    """Two nodes, each of which has a pod."""
    found = []
    for machine in MACHINES:
        path = tmp_path_factory.mktemp("agent") / "a.sock"
        with served(path, machine=machine) as api:
            api.ask("POST", "/v1/pods", manifest("web", "1"))
            found.append(whole_of(api))
    return found


class Browser:
    """Knows what it was told, as the page does."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.waiting: list[bytes] = []
        self.scene: Scene | None = None
        self.root: SceneBox | None = None
        self.problem = ""
        self.last_id = ""

    def read(self, drawn: Drawn, most: int | None = None) -> None:
        """So many messages at most, of those that wait; the next come when none does."""
        if not self.waiting:
            self.waiting = list(drawn.news(self.seen))
        now, self.waiting = self.waiting[:most], [] if most is None else self.waiting[most:]
        kinds = []
        for event in _events(now):
            kinds.append(event.kind)
            self.last_id = event.id
            self.problem = event.problem or ""
            if event.kind == "whole":
                self.root = None
            if event.scene is not UNSET:
                self.scene = event.scene
                self.root = event.scene.root or self.root
            assert (event.whole, event.changed) == (UNSET, UNSET)
        assert len(kinds) <= len({*kinds}) <= 3, "a reader who is late is told the newest only"


def _events(messages: Iterable[bytes]) -> list[Event]:
    stream = EventStream()
    found = [told for message in messages for told in stream.feed(message)]
    events = [msgspec.json.decode(one.data, type=Event) for one in found]
    assert [(one.id, one.event) for one in found] == [(one.id, one.kind) for one in events]
    return events


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["first", "second", "pool", "gone", "away", "read", "slowly", "again"]),
        st.integers(0, 2),
    ),
    max_size=25,
)


@given(STEPS)
@example([("first", 0), ("read", 0), ("away", 0), ("read", 0), ("away", 1), ("read", 0)])
@example([("first", 0), ("read", 0), ("second", 0), ("pool", 0), ("read", 0)])
def test_whoever_reads_knows_all_of_it(wholes: list[Whole], steps: list[tuple[str, int]]) -> None:
    drawn = Drawn()
    browsers = [Browser(Seen()) for _ in range(3)]
    for number, (what, which) in enumerate(steps):
        event = Event(id=f"run-{number}", at=float(number), kind="changed")
        if what in ("first", "second"):
            whole = wholes[what == "second"]
            drawn.take(replace(event, kind="whole", whole=whole))
        elif what == "pool":
            drawn.take(replace(event, changed=Changed(shared=str(which), pool=str(which))))
        elif what == "gone" and drawn.whole is not None:
            uids = [one.uid for one in drawn.whole.status.pods]
            drawn.take(replace(event, changed=Changed(gone=uids)))
        elif what == "away":
            drawn.is_away(f"no agent {which}")
        elif what == "read":
            browsers[which].read(drawn)
        elif what == "slowly":
            browsers[which].read(drawn, 1)
        elif what == "again":
            browser = browsers[which]
            browser.waiting, browser.problem = [], ""
            browser.seen = drawn.seen_by(browser.last_id)
    for browser in browsers:
        while browser.waiting:
            browser.read(drawn)
        browser.read(drawn)
        assert browser.problem == drawn.problem
        assert (browser.scene is None) == (drawn.scene is None)
        if browser.scene is not None and drawn.scene is not None:
            known = replace(browser.scene, root=browser.root or UNSET)
            assert encoded(known) == encoded(drawn.scene)
            assert drawn.scene.live
        assert drawn.news(browser.seen) == [], "nothing is told twice"


def test_a_message_is_made_once_for_all(wholes: list[Whole]) -> None:
    drawn = Drawn()
    drawn.take(Event(id="a-1", at=1.0, kind="whole", whole=wholes[0]))
    one, two = (drawn.news(Seen()) for _ in range(2))
    assert one[0] is two[0]


def test_what_comes_while_it_is_sent_is_told_next(wholes: list[Whole]) -> None:
    drawn, seen = Drawn(), Seen()
    drawn.take(Event(id="a-1", at=1.0, kind="whole", whole=wholes[0]))
    sent = iter(drawn.news(seen))
    next(sent)
    drawn.take(Event(id="a-2", at=2.0, kind="changed", changed=Changed(shared="0", pool="0")))
    assert list(sent) == []
    (event,) = _events(drawn.news(seen))
    assert drawn.scene is not None
    assert event.scene is not UNSET
    assert encoded(event.scene) == encoded(replace(drawn.scene, root=UNSET))


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_blocks_make_one_stream_whoever_has_which(messages: list[bytes]) -> None:
    """Each can be read as soon as it is there, and also by who begins with a later one."""
    for first in range(len(messages) + 1):
        reader = zlib.decompressobj(wbits=31)
        assert reader.decompress(STREAM_BEGINS) == b""
        for message in messages[first:]:
            assert reader.decompress(block(message)) == message


@given(st.binary(max_size=300))
def test_a_file_is_whole(content: bytes) -> None:
    assert gzip.decompress(compressed(content)) == content
