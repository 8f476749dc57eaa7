"""``pinfold serve`` at its beginning and its end: what it says, and what it cannot use."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.scenes.served_page import begun
from tests.scenes.small_disk import mounted
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import served

AT = ("--listen", "127.0.0.1:0")


def refused(*words: str, status: int = 1) -> str:
    """What it says when it does not begin."""
    done = subprocess.run(
        [sys.executable, "-m", "pinfold", "serve", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def file_with(path: Path, content: str = "t" * 43, mode: int = 0o600) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_when_told(tmp_path: Path, number: signal.Signals) -> None:
    with begun("--socket", str(tmp_path / "a.sock"), *AT) as page:
        page.begin()
        assert page.stop(number) == 0
        assert re.fullmatch(
            rf"http://127\.0\.0\.1:\d+/ \(the token is in {tmp_path}/page-token\)\n", page.text
        )


def test_the_token_is_told_to_a_terminal_only(tmp_path: Path) -> None:
    """A pipe may be somebody's log."""
    ours, theirs = pty.openpty()
    words = ["serve", "--socket", str(tmp_path / "a.sock"), *AT]
    process = subprocess.Popen(
        [sys.executable, "-m", "pinfold", *words], stdout=theirs, stderr=theirs, stdin=theirs
    )
    try:
        os.close(theirs)
        text = ""
        while "\n" not in text:
            text += os.read(ours, 4096).decode()
        token = (tmp_path / "page-token").read_text().strip()
        assert re.fullmatch(rf"http://127\.0\.0\.1:\d+/\?token={token}\r\n", text)
        assert token not in Path(f"/proc/{process.pid}/cmdline").read_text()
    finally:
        process.terminate()
        assert process.wait(20) == 0
        os.close(ours)


def test_the_token_outlives_the_command(tmp_path: Path) -> None:
    tokens = set()
    for _ in range(2):
        with begun("--socket", str(tmp_path / "a.sock"), *AT) as page:
            page.begin()
            tokens.add((tmp_path / "page-token").read_text())
    assert len(tokens) == 1


def test_a_browser_is_opened_with_a_secret_for_once(tmp_path: Path) -> None:
    """Its command line can be read by everybody on the machine."""
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    words = ("--socket", str(tmp_path / "a.sock"), *AT, "--open")
    with begun(*words, env={"BROWSER": str(browser)}) as page:
        page.begin()
        address = wait_until(lambda: opened.exists() and opened.read_text())
        assert isinstance(address, str)
        target = address.partition(f":{page.port}")[2]
        assert target.startswith("/?token=")
        assert (tmp_path / "page-token").read_text().strip() not in address
        assert page.ask("GET", target).status == 303
        assert page.ask("GET", target).status == 401


def test_the_secret_for_once_ends_with_the_token(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    words = ("--socket", str(tmp_path / "a.sock"), *AT, "--open")
    with begun(*words, env={"BROWSER": f"sh -c 'echo %s > {opened}'"}) as page:
        page.begin()
        wait_until(lambda: opened.exists() and opened.read_text().endswith("\n"))
        target = opened.read_text().strip().partition(f":{page.port}")[2]
        file_with(tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "page-token")
        assert page.ask("GET", target).status == 401


def test_a_browser_in_the_terminal_has_the_page_while_it_is_waited_for(tmp_path: Path) -> None:
    """It ends when its user does, and until then asks."""
    words = ("--socket", str(tmp_path / "a.sock"), *AT, "--open")
    seen = tmp_path / "seen"
    with begun(*words, env={"BROWSER": f"curl -s -m 20 -o {seen} %s"}) as page:
        page.begin()
        wait_until(seen.exists)
        wait_until(lambda: page.ask("GET", "/healthz").status == 200)
        assert "no browser" not in page.text


def test_an_address_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = refused("--socket", str(tmp_path / "a.sock"), "--listen", address)
    assert text == f"Error: {address}: Address already in use (give another address)"


@pytest.mark.parametrize(
    "address",
    [
        *("7468", ":7468", "localhost", "localhost:", "localhost:x", "example.org:80", "*:80", ""),
        *("127.0.0.1:x", "127.0.0.1:70000", "[::1]:70000", "::1:80"),
    ],
)
def test_an_address_is_said_clearly(tmp_path: Path, address: str) -> None:
    text = refused("--socket", str(tmp_path / "a.sock"), "--listen", address, status=2)
    assert "--listen" in text


def test_the_name_of_a_host_is_one(tmp_path: Path) -> None:
    words = ("--socket", str(tmp_path / "a.sock"), "--host-name", "http://x/")
    assert "--host-name" in refused(*words, status=2)


def test_an_address_of_the_network_is_warned_of(tmp_path: Path) -> None:
    with begun("--socket", str(tmp_path / "a.sock"), "--listen", "0.0.0.0:0") as page:
        page.begin()
        wait_until(lambda: "nothing is encrypted" in page.text)
        host = {"Host": f"node-7:{page.port}"}
        assert page.ask("GET", "/", host).status == 403


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_token_that_others_may_read_is_none(tmp_path: Path, mode: int) -> None:
    file_with(tmp_path / "page-token", mode=mode)
    text = refused("--socket", str(tmp_path / "a.sock"), *AT)
    assert f"others may read the token (mode {mode:04o})" in text
    assert "chmod 0600" in text


@pytest.mark.parametrize("content", ["", "short", "x" * 31, "x" * 2000, "a b" * 20, "ä" * 40])
def test_a_token_is_long_enough(tmp_path: Path, content: str) -> None:
    file_with(tmp_path / "page-token", content)
    assert "a token has 32 to 1024" in refused("--socket", str(tmp_path / "a.sock"), *AT)


def test_a_pipe_is_no_token(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "page-token", 0o600)
    assert "is no file" in refused("--socket", str(tmp_path / "a.sock"), *AT)


def test_a_token_that_becomes_a_pipe_holds_up_nobody(tmp_path: Path) -> None:
    with begun("--socket", str(tmp_path / "a.sock"), *AT) as page:
        page.begin()
        (tmp_path / "page-token").unlink()
        os.mkfifo(tmp_path / "page-token", 0o600)
        assert "is no file" in page.ask("GET", "/").error["message"]
        assert page.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else, which root may")
def test_a_token_of_somebody_else_is_none(tmp_path: Path) -> None:
    os.chown(file_with(tmp_path / "page-token"), 12345, 0)
    assert "belongs to user 12345" in refused("--socket", str(tmp_path / "a.sock"), *AT)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else, which root may")
def test_a_folder_of_somebody_else_holds_no_token(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 0)
    text = refused("--socket", str(folder / "a.sock"), *AT)
    assert "belongs to user 12345" in text
    assert not (folder / "page-token").exists()


def test_a_link_to_a_token_is_followed_as_a_secret_has_them(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    file_with(tmp_path / "..data" / "token", "s" * 44 + "\n", mode=0o400)
    (tmp_path / "token").symlink_to("..data/token")
    words = ("--socket", str(tmp_path / "a.sock"), "--token-file", str(tmp_path / "token"), *AT)
    with begun(*words) as page:
        page.begin()
        page.enter("s" * 44)
        assert not (tmp_path / "page-token").exists()


def test_a_token_that_somebody_else_brings_is_waited_for(tmp_path: Path) -> None:
    """The Secret of a pod may be made after it."""
    file = tmp_path / "secret" / "token"
    words = ("--socket", str(tmp_path / "a.sock"), "--token-file", str(file), *AT)
    with begun(*words) as page:
        page.begin()
        wait_until(lambda: "lets nobody in yet" in page.text)
        answer = page.ask("GET", "/")
        assert (answer.status, answer.error["code"]) == (503, "ServiceUnavailable")
        assert "no token" in answer.error["message"]
        assert page.ask("GET", "/healthz").status == 200
        assert not file.parent.exists()
        file.parent.mkdir()
        file_with(file)
        page.enter("t" * 43)


def test_a_full_disk_has_no_room_for_a_token(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with mounted(folder, "16k"):
        (folder / "ballast").write_bytes(b"")
        with pytest.raises(OSError, match="No space left"):
            (folder / "ballast").write_bytes(bytes(1 << 20))
        text = refused("--socket", str(folder / "a.sock"), *AT)
        assert "No space left on device" in text
        assert not (folder / "page-token").exists(), "half a token is worse than none"


def test_two_agents_have_two_pages(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    one, two = (str(folder / "a.sock") for folder in folders)
    with begun("--socket", one, *AT) as first, begun("--socket", two, *AT) as second:
        for page, folder in zip((first, second), folders, strict=True):
            page.begin()
            page.enter((folder / "page-token").read_text().strip())
        value = first.cookie.partition("=")[2]
        cookie = {"Cookie": f"pinfold-{second.port}={value}"}
        assert second.ask("GET", "/files/page.css", cookie).status == 401


def others_may_run_python() -> bool:
    """Whether this is root, and its Python is not in a folder of its own."""
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run([sys.executable, "-c", ""], user=12345, check=False).returncode == 0
    except PermissionError:
        return False


@pytest.mark.skipif(not others_may_run_python(), reason="no other user may run this Python")
def test_who_may_not_ask_the_agent_serves_nothing_of_it() -> None:
    """The page has the rights of whoever serves it, and no more."""
    # What is above a test's own folder is its user's alone.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        token = file_with(folder / "token")
        os.chown(token, 12345, 12345)
        _is_served_nothing(folder / "a.sock", token)


def _is_served_nothing(path: Path, token: Path) -> None:
    with served(path):
        path.chmod(0o666)
        words = ["--socket", str(path), "--token-file", str(token), *AT]
        with begun(*words, user=12345) as page:
            page.begin()
            page.enter("t" * 43)
            answer = page.ask("GET", "/v1/scene")
            assert (answer.status, answer.error["code"]) == (503, "ServiceUnavailable")
            assert "only its own user and root may ask it" in answer.error["message"]
