"""The local API's server: its socket, who may ask, those who stall, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import selectors
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.ports.errors import PortError
from pinfold.web.limited_connection import Limits
from pinfold.web.listening import listening
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import PATIENCE, wait_until
from tests.scenes.web_world import (
    Served,
    UnixConnection,
    container_id,
    phase,
    plain,
    read_all,
    served,
)

ASK = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def enter(path: Path) -> None:
    async with listening(path):
        pass


def refusal(path: Path) -> PortError:
    """Why nobody can listen there."""
    with pytest.raises(PortError) as caught:
        asyncio.run(enter(path))
    place = Path(caught.value.problem.partition(":")[0])
    assert place in (path, *path.parents)
    assert caught.value.remedy
    return caught.value


# --------------------------------------------------------------------------------- the socket file


def test_the_socket_is_its_owners_and_so_is_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "run" / "pinfold" / "agent.sock"
    before = os.umask(0)
    try:
        with served(path) as api:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert api.ask("GET", "/healthz").status == 200
    finally:
        os.umask(before)
    assert not path.exists()


def test_the_mode_is_right_before_anybody_can_connect(tmp_path: Path) -> None:
    """The file is watched from another process while sockets come and go under umask 0."""
    path = tmp_path / "s"
    watcher = (
        "import os, sys, stat\n"
        "modes = set()\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[1] + '.end'):\n"
        "    try: modes.add(stat.S_IMODE(os.stat(sys.argv[1]).st_mode))\n"
        "    except OSError: pass\n"
        "print(*map(oct, modes))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", watcher, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    before = os.umask(0)
    try:
        for _ in range(200):
            asyncio.run(enter(path))
    finally:
        os.umask(before)
        (tmp_path / "s.end").touch()
    seen, _ = process.communicate(timeout=10 * PATIENCE)
    assert set(seen.split()) <= {"0o600"}


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.is_socket()
    with served(path) as api:
        assert api.ask("GET", "/healthz").status == 200
    assert not path.exists()


def test_a_living_agent_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(path) as api:
        error = refusal(path)
        assert "another agent" in error.problem
        assert api.ask("GET", "/healthz").status == 200


def test_an_agent_that_is_too_busy_to_accept_lives(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        busy.bind(str(path))
        busy.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(str(path))
        assert "another agent" in refusal(path).problem
        assert path.is_socket()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    assert "no socket" in refusal(path).problem
    assert path.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(path)
    assert "no socket" in refusal(link).problem
    assert link.is_symlink()


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    assert "107 bytes" in refusal(tmp_path / ("x" * 200)).problem
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refusal(tmp_path / "file" / "s")
    refusal(Path("/proc/pinfold-is-not-here/s"))


def test_a_folder_in_which_others_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert "others may write" in refusal(folder / "s").problem
    refusal(folder / "in" / "s")
    assert list(folder.iterdir()) == []
    folder.chmod(0o1777)
    asyncio.run(enter(folder / "in" / "t"))


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")


@pytest.mark.usefixtures("as_root")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65533, 65533)
    assert "user 65533" in refusal(folder / "s").problem


def test_two_agents_that_start_at_once(tmp_path: Path) -> None:
    """Both find a stale socket; one gets it, and the other is told."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def one() -> str:
        try:
            async with listening(path):
                await asyncio.sleep(0.1)
        except PortError as error:
            return error.problem
        return "listened"

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(10)))

    results = asyncio.run(all_of_them())
    assert results.count("listened") == 1
    assert sum("another agent" in result for result in results) == 9


def test_a_folder_that_somebody_keeps_locked(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        refusal(tmp_path / "s")
    finally:
        os.close(descriptor)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_somebody_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with served(path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


# ------------------------------------------------------------------------------------ who may ask


@pytest.mark.usefixtures("as_root")
def test_other_users_are_hung_up_on() -> None:
    # pytest's own folders are closed to other users, so that they would never get to the check.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    path = folder / "s"
    script = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1])\n"
        "try:\n"
        "    s.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')\n"
        "    print(s.recv(100))\n"
        "except (BrokenPipeError, ConnectionResetError): print(b'')\n"
    )
    try:
        with served(path) as api:
            folder.chmod(0o755)
            path.chmod(0o666)
            command = [sys.executable, "-c", script, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
            assert (done.stdout.strip(), done.stderr) == ("b''", "")
            assert api.ask("GET", "/healthz").status == 200
    finally:
        shutil.rmtree(folder)


# --------------------------------------------------------------------------------- those who stall


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Served]:
    """A server that waits but shortly."""
    with served(tmp_path / "s", limits=Limits(request=0.3, answer=0.3, idle=1)) as server:
        yield server


STALLS = {
    "says nothing": b"",
    "half a line": b"GET /v1/sta",
    "half a header": b"GET /v1/status HTTP/1.1\r\nHost: a\r\nX-Y",
    "no body": b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
    "half a body": b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
    "half a chunk": b"POST /v1/run HTTP/1.1\r\nHost: a\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "waits for 100": b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"
    b"Expect: 100-continue\r\n\r\n",
}


@pytest.mark.parametrize("what", STALLS)
def test_who_stalls_is_told_and_hung_up_on(hasty: Served, what: str) -> None:
    with plain(hasty.path) as sock:
        began = time.monotonic()
        sock.sendall(STALLS[what])
        answer = read_all(sock)
        assert 0.25 < time.monotonic() - began < 5 * PATIENCE
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b'"RequestTimeout"' in answer


def test_who_sends_byte_by_byte_is_hung_up_on(hasty: Served) -> None:
    with plain(hasty.path) as sock:
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in ASK * 100:
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 5 * PATIENCE


def test_who_half_asks_a_second_time_is_hung_up_on(hasty: Served) -> None:
    with plain(hasty.path) as sock:
        sock.sendall(ASK.replace(b"close", b"keep-alive"))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /hea")
        assert b" 408 " in read_all(sock)


def test_who_does_not_read_is_hung_up_on(hasty: Served) -> None:
    for number in range(200):
        hasty.ask("POST", "/v1/pods", manifest(f"pod-{number}", "20"))
    with plain(hasty.path) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(200):
                sock.sendall(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
                time.sleep(0.001)
        wait_until(lambda: hasty.ask("GET", "/healthz").status == 200)
        time.sleep(0.6)
        assert len(read_all(sock)) < 10_000_000


def test_who_stalls_holds_up_nobody(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, contextlib.ExitStack() as stack:
        for text in [*STALLS.values()] * 10:
            stack.enter_context(plain(api.path)).sendall(text)
        began = time.monotonic()
        assert api.ask("POST", "/v1/pods", manifest("web", "")).status == 201
        assert time.monotonic() - began < 2 * PATIENCE


def test_who_hangs_up_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api:
        for text in [*STALLS.values()] * 5:
            with plain(api.path) as sock:
                sock.sendall(text)
        with plain(api.path) as sock:
            sock.sendall(ASK)
        assert api.ask("GET", "/healthz").status == 200


def test_200_connections_at_once(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(plain(api.path)) for _ in range(200)]
        for sock in socks:
            sock.sendall(ASK)
        answers = [read_all(sock) for sock in socks]
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


def test_who_connects_and_says_nothing_keeps_nobody_out(tmp_path: Path) -> None:
    """The one that has waited longest makes room, whatever it waits in the middle of."""
    with (
        served(tmp_path / "s", limits=Limits(connections=5, request=60)) as api,
        contextlib.ExitStack() as stack,
    ):
        wait_until(lambda: api.do(lambda: len(api.connections())) == 0)
        kept = []
        for text in (b"", b"GET /", STALLS["half a body"], ASK.replace(b"close", b"keep-alive")):
            kept.append(stack.enter_context(plain(api.path)))
            kept[-1].sendall(text)
        wait_until(lambda: kept[3].recv(1000).endswith(b"ok"))
        idle = [stack.enter_context(plain(api.path)) for _ in range(20)]
        for _ in range(3):
            assert api.ask("GET", "/healthz").status == 200
        wait_until(lambda: api.do(lambda: len(api.connections())) <= 5)
        assert [read_all(sock) for sock in (*kept, *idle[:10])] == [b""] * 14


def test_a_flood_of_connections_keeps_nobody_out(tmp_path: Path) -> None:
    with (
        served(tmp_path / "s", limits=Limits(connections=40)) as api,
        contextlib.ExitStack() as stack,
    ):
        for number in range(2000):
            with contextlib.suppress(OSError):  # it has no more files
                stack.enter_context(plain(api.path))
            if number % 100 == 0:
                assert api.ask("POST", "/v1/pods", manifest(f"pod-{number}", "")).status == 201
        wait_until(lambda: api.do(lambda: len(api.connections())) <= 40)


def test_when_all_are_being_answered_one_more_is_told_to_come_again(tmp_path: Path) -> None:
    with (
        served(tmp_path / "s", limits=Limits(connections=3)) as api,
        contextlib.ExitStack() as stack,
    ):
        wait_until(lambda: api.do(lambda: len(api.connections())) == 0)
        holding = api.backend.books.change()
        api.call(holding.__aenter__())
        busy = [stack.enter_context(plain(api.path)) for _ in range(3)]
        for sock in busy:
            sock.sendall(b"POST /v1/reconcile HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        wait_until(lambda: api.do(lambda: [one.waits for one in api.connections()]) == [False] * 3)
        with plain(api.path) as sock:
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"ask again soon" in answer
        api.call(holding.__aexit__(None, None, None))
        assert all(read_all(sock).startswith(b"HTTP/1.1 200 ") for sock in busy)
        assert api.ask("GET", "/healthz").status == 200


def test_the_rest_of_a_body_that_was_refused_is_not_read(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, plain(api.path) as sock:
        sock.sendall(b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 200000000\r\n\r\n")
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(2000):
                sent += sock.send(bytes(100_000))
        assert sent < 20_000_000
        assert sock.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_requests_on_one_connection(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api:
        connection = UnixConnection(api.path)
        for _ in range(50):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok"
        connection.close()
        with plain(api.path) as sock:
            sock.sendall(ASK.replace(b"close", b"keep-alive") * 20 + ASK)
            assert read_all(sock).count(b"HTTP/1.1 200") == 21, "pipelined"


# ------------------------------------------------------------------------------------------ the end


def test_the_end_is_soon_although_requests_are_pending(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, contextlib.ExitStack() as stack:
        stubborn = manifest("stubborn", "1", terminationGracePeriodSeconds=600)
        api.ask("POST", "/v1/pods", stubborn)
        wait_until(lambda: phase(api, "stubborn") == "Running")
        api.do(lambda: api.node.runtime.ignores_sigterm.add(container_id(api, "stubborn")))
        answers: list[int] = []
        deletion = threading.Thread(
            target=lambda: answers.append(api.ask("DELETE", "/v1/pods/default/stubborn").status)
        )
        deletion.start()
        wait_until(lambda: phase(api, "stubborn") == "Terminating")
        for text in STALLS.values():
            stack.enter_context(plain(api.path)).sendall(text)
        idle = stack.enter_context(plain(api.path))
        idle.sendall(ASK.replace(b"close", b"keep-alive"))
        assert idle.recv(100)
        began = time.monotonic()
        api.end()
        assert time.monotonic() - began < 2 * PATIENCE
        deletion.join(5 * PATIENCE)
        assert answers == [503], "told that the agent stops"
        assert not api.path.exists()


def test_what_was_begun_is_finished_before_the_end(tmp_path: Path) -> None:
    """An admission is never given up between its record and its effects."""
    with served(tmp_path / "s") as api:
        store = api.node.store
        commit = store.commit
        begun = threading.Event()

        class Slow:
            async def commit(self, batch: object) -> None:
                begun.set()
                await asyncio.sleep(0.3)
                await commit(batch)  # type: ignore[arg-type] # handed on as it came

        def slow_down() -> None:
            store.commit = Slow().commit  # type: ignore[method-assign] # a slow disk in front

        api.do(slow_down)
        answers: list[int] = []
        creation = threading.Thread(
            target=lambda: answers.append(api.ask("POST", "/v1/pods", manifest("db", "2")).status)
        )
        creation.start()
        assert begun.wait(5 * PATIENCE)
        api.end()
        creation.join(5 * PATIENCE)
        assert answers == [201]
        assert store.pods["uid-db"].assignments


def test_an_idle_server_does_not_wake_up(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api:
        selector: selectors.BaseSelector = api.loop._selector  # type: ignore[attr-defined] # asyncio's # noqa: SLF001 - the same
        select = selector.select
        woken: list[float | None] = []

        def counted(timeout: float | None = None) -> object:
            woken.append(timeout)
            return select(timeout)

        api.do(lambda: setattr(selector, "select", counted))
        time.sleep(0.5)
        assert len(woken) <= 4
        with contextlib.suppress(AttributeError):
            api.do(lambda: delattr(selector, "select"))
