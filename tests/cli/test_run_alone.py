"""``pinfold run`` without an agent: any user, affinities, one list."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pinfold.adapters.run_record import Entry, RunRecord, RunRecordError
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import began
from tests.roots import ROOT
from tests.scenes.cgroups_contract import headless_process

CPUS = CPUSet(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
SHOW = "grep Cpus_allowed_list /proc/self/status"


def command(folder: Path, *args: str) -> list[str]:
    place = f"--socket={folder / 's.sock'}"
    return [sys.executable, "-m", "pinfold", "run", place, *args]


def own_list(folder: Path) -> dict[str, str]:
    """An environment in which commands of other tests are not known."""
    return {**os.environ, "PINFOLD_RUN_DIR": str(folder / "list")}


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *args),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=own_list(folder),
    )


@two_cpus
def test_it_is_pinned_and_says_what_is_weaker(tmp_path: Path) -> None:
    done = run(tmp_path, "--cpus", "1", "--", "sh", "-c", f"{SHOW}; echo $PINFOLD_CPUS; exit 5")
    assert done.returncode == 5
    listed, told = done.stdout.split()[1:]
    assert listed == told
    assert len(CPUSet.parse(told)) == 1
    assert "kept by affinity only" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--memory", "1Mi"], "not enforced: --memory 1Mi"),
        (["--cpus", "500m"], "not enforced: --cpus 500m"),
        (["--cpus=500m", "--memory=1Mi"], "not enforced: --cpus 500m, --memory 1Mi"),
    ],
)
def test_limits_that_nobody_enforces_are_said(tmp_path: Path, asked: list[str], said: str) -> None:
    done = run(tmp_path, *asked, "--", "true")
    assert done.returncode == 0
    assert said in done.stderr
    assert run(tmp_path, "--", "true").stderr == ""


def test_what_runs_in_the_foreground_is_not_started_again(tmp_path: Path) -> None:
    done = run(tmp_path, "--restart", "Always", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--restart needs --detach" in done.stderr


@two_cpus
def test_others_make_room_and_come_back(tmp_path: Path) -> None:
    shared = subprocess.Popen(
        command(tmp_path, "--", "sh", "-c", f"{SHOW}; read a; {SHOW}; read a; {SHOW}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=own_list(tmp_path),
    )
    assert shared.stdout is not None
    assert shared.stdin is not None
    assert CPUSet.parse(shared.stdout.readline().split()[1]) == CPUS
    owner = subprocess.Popen(
        command(tmp_path, "--cpus", "1", "--", "sh", "-c", "echo $PINFOLD_CPUS; read a"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=own_list(tmp_path),
    )
    assert owner.stdout is not None
    own = CPUSet.parse(owner.stdout.readline().strip())
    shared.stdin.write("\n")
    shared.stdin.flush()
    assert CPUSet.parse(shared.stdout.readline().split()[1]) == CPUS - own
    if len(CPUS) == 2:
        refused = run(tmp_path, "--cpus", "1", "--", "true")
        assert refused.returncode == 1
        assert "not enough cpus available" in refused.stderr
    owner.communicate("\n")
    time.sleep(0.1)
    assert CPUSet.parse(shared.communicate("\n")[0].split()[1]) == CPUS


def test_status_of_what_cannot_be_executed(tmp_path: Path) -> None:
    assert run(tmp_path, "--", "no-such-command").returncode == 127
    assert run(tmp_path, "--", "/etc/hostname").returncode == 126
    assert run(tmp_path, "--workdir", "/no/such", "--", "true").returncode == 2
    killed = run(tmp_path, "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--cpus", "-1", "--", "true"), "more than nothing"),
        (("--cpus", "x", "--", "true"), "--cpus"),
        (("--memory", "1Zi", "--", "true"), "--memory"),
        (("--env", "X", "--", "true"), "expected NAME=VALUE"),
        (("--detach", "--", "true"), "--detach needs an agent"),
        ((), "Missing argument"),
    ],
)
def test_bad_arguments_are_one_clear_error(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    done = run(tmp_path, *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("files", range(5, 12))
def test_too_few_files_are_one_clear_error(tmp_path: Path, files: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command(tmp_path, "--", "true")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=own_list(tmp_path),
    )
    if done.returncode != 0:
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ")
        assert len(done.stderr.splitlines()) == 1


def test_a_list_that_is_no_file_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "alone.json"
    os.mkfifo(path)
    with pytest.raises(RunRecordError, match="no regular file"), RunRecord(path).locked():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@two_cpus
def test_a_user_without_rights() -> None:
    folder = Path(f"/tmp/pinfold-test-{os.getpid()}")  # noqa: S108 - where that user may write
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    try:
        done = subprocess.run(
            [
                *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
                *("sh", "-c", f'test -x {sys.executable} || exit 99; exec "$@"', "sh"),
                *command(folder, "--cpus", "1", "--", "sh", "-c", SHOW),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "src"),
                "XDG_RUNTIME_DIR": str(folder),
            },
        )
        if done.returncode in (99, 126) or "No module named" in done.stderr:
            pytest.skip("that user cannot read this Python")
        assert done.returncode == 0, done.stderr
        assert len(CPUSet.parse(done.stdout.split()[1])) == 1
        assert [path.name for path in folder.rglob("*")] == ["pinfold"]
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@two_cpus
def test_the_socket_of_a_dead_agent_keeps_its_cpus(tmp_path: Path) -> None:
    """Its pods outlive it; on which CPUs they are, only an agent knows."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s.sock"))
    done = run(tmp_path, "--cpus", "1", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no agent listens on {tmp_path / 's.sock'}; start one" in done.stderr
    assert "the pods of an agent outlive it" in done.stderr
    assert "PINFOLD_SOCKET" in done.stderr
    assert not (tmp_path / "list").exists()
    (tmp_path / "s.sock").unlink()
    assert run(tmp_path, "--cpus", "1", "--", "true").returncode == 0
    assert list((tmp_path / "list").iterdir()) == [], "nothing is left of the last command"
    assert [file.name for file in tmp_path.iterdir()] == ["list"]


def test_an_agent_that_does_not_answer_is_not_passed_by(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "s.sock"))
        deaf.listen()
        asked = subprocess.Popen(
            command(tmp_path, "--cpus", "1", "--", "true"),
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=own_list(tmp_path),
        )
        deaf.accept()[0].close()
        problem = asked.communicate()[1]
    assert asked.returncode == 1
    assert "the agent did not answer" in problem


def test_a_record_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody is on the CPUs that it names."""
    path = tmp_path / "alone.json"
    me = os.getpid()
    alive = Entry(me, began(me) or 0, "1-2", "{}")
    with RunRecord(path).locked() as entries:
        entries["alive"] = alive
    real = os.open

    def short(file: Path | str, flags: int, mode: int = 0o777) -> int:
        if str(file) == str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(file, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", short)
        with pytest.raises(RunRecordError, match="LimitNOFILE"), RunRecord(path).locked():
            pass
    with RunRecord(path).locked() as entries:
        assert entries == {"alive": alive}
    path.write_text("{broken")
    with (
        pytest.raises(RunRecordError, match="remove the file when no pinfold run goes on"),
        RunRecord(path).locked(),
    ):
        pass
    assert path.read_text() == "{broken"
    os.utime(path, (0, 0))
    with RunRecord(path).locked() as entries:
        assert entries == {}, "it is of before the machine was started"


def test_the_record_forgets_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "run" / "alone.json"
    me = os.getpid()
    alive = Entry(me, began(me) or 0, "1-2", "{}")
    # Only its first thread has ended.
    with headless_process() as pid:
        assert began(pid)
    with RunRecord(path).locked() as entries:
        entries |= {"alive": alive, "dead": Entry(me, 1, "3", "{}")}
    with RunRecord(path).locked() as entries:
        assert entries == {"alive": alive}
        assert entries["alive"].exclusive == CPUSet.parse("1-2")
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunRecordError, match=r"ot a directory \(elsewhere\)"),
        RunRecord(tmp_path / "file" / "x.json", remedy="elsewhere").locked(),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("planted", ["alone.json", "alone.json.lock", ".alone.json.new", "other"])
def test_what_another_user_planted_is_neither_followed_nor_used(
    tmp_path: Path, planted: str
) -> None:
    """In a folder such as ``/tmp``, where everybody makes names."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    link = shared / planted
    link.symlink_to(precious)
    os.chown(link, 65533, 65533, follow_symlinks=False)
    with (
        pytest.raises(RunRecordError, match="belongs to user 65533"),
        RunRecord(shared / "alone.json", remedy="elsewhere").locked(),
    ):
        pass
    # A folder of one's own behind a link of another's is his to turn.
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (shared / "way").symlink_to(mine)
    os.chown(shared / "way", 65533, 65533, follow_symlinks=False)
    with (
        pytest.raises(RunRecordError, match="a link that belongs to user 65533"),
        RunRecord(shared / "way" / "alone.json", remedy="elsewhere").locked(),
    ):
        pass
    assert list(mine.iterdir()) == []
    assert precious.read_text() == "kept"


def test_a_link_in_ones_own_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text('{"boot": "x"}')
    path = tmp_path / "run" / "alone.json"
    path.parent.mkdir(mode=0o700)
    path.symlink_to(precious)
    with pytest.raises(RunRecordError, match="symbolic"), RunRecord(path).locked():
        pass
    path.unlink()
    (path.parent / ".alone.json.new").symlink_to(precious)
    me = Entry(os.getpid(), began(os.getpid()) or 0, None, "{}")
    with RunRecord(path).locked() as entries:
        assert entries == {}
        entries["me"] = me
    assert precious.read_text() == '{"boot": "x"}'
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    with RunRecord(path).locked() as entries:
        assert entries == {"me": me}
