"""The files of the SQLite store: their rights, older and newer forms, damage, and what is odd."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.store.connection import fill
from pinfold.adapters.store.place import create
from pinfold.adapters.store.schema import APPLICATION_ID, MIGRATIONS
from pinfold.ports.errors import StoreError
from pinfold.ports.records import (
    Batch,
    HistoryEntry,
    PodPhase,
    Record,
)
from tests.scenes.store_contract import NODE, load, pod, with_store

SEVERAL = Batch(
    NODE,
    tuple(pod(f"p{n}", message="x" * 300) for n in range(50)),
    history=tuple(HistoryEntry(1.0, "k", "u", "n/p", "{}") for _ in range(50)),
)


def everything(folder: Path) -> dict[str, bytes]:
    """What is in a folder; a reader leaves an index there, and a log with nothing in it."""
    found = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.endswith(("-shm", ".lock"))
    }
    return {name: data for name, data in found.items() if data or name != "db-wal"}


def alter(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        database.execute(statement)
    database.close()


def read_only(path: Path) -> Record:
    async def whole() -> Record:
        reader = SQLiteStore.read_only(path)
        try:
            return await reader.load()
        finally:
            await reader.close()

    return asyncio.run(whole())


# ----------------------------------------------------------------------------------------- rights


def test_files_and_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / "above" / "state" / "db"
    old = os.umask(0o000)
    try:

        async def work(store: SQLiteStore) -> None:
            await store.commit(Batch(NODE))
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
            assert modes == dict.fromkeys(
                ("db", "db-wal", "db-shm", "db.lock", "db.generation"), 0o600
            )

        with_store(path, work)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_record_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "db"
    load(path)
    path.chmod(mode)
    with pytest.raises(StoreError, match=rf"others than its owner.*chmod 600 {path}"):
        load(path)
    path.chmod(0o600)
    load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_record_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(Batch(NODE)))
    os.chown(path, 65534, -1)
    with pytest.raises(StoreError, match="belongs to user 65534, but the agent runs as user 0"):
        load(path)
    assert path.stat().st_uid == 65534
    assert read_only(path).node == NODE


# ---------------------------------------------------------------------------------- what is there


def test_the_first_start_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    """What a first start that was killed left is no hindrance."""
    path = tmp_path / "db"
    for name in ("db.new", "db.new-journal", "db.lock"):
        (tmp_path / name).write_bytes(b"half a file")
    assert load(path) == Record()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["db", "db.generation", "db.lock"]


def test_an_empty_file_is_no_record(tmp_path: Path) -> None:
    """The first start never leaves one; taken for a new record, it would end every pod."""
    path = tmp_path / "db"
    path.touch()
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match=r"db: empty, which a record never is.*move it"):
            refuse(path)
    assert path.stat().st_size == 0


def test_a_log_whose_database_is_gone_is_not_thrown_away(tmp_path: Path) -> None:
    path, log = tmp_path / "db", tmp_path / "db-wal"

    async def work(store: SQLiteStore) -> bytes:
        await store.commit(SEVERAL)
        return log.read_bytes()

    left = with_store(path, work)
    path.unlink()
    log.write_bytes(left)
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match=r"there is none, but .*db-wal.*put the file back"):
            refuse(path)
    path.touch()
    with pytest.raises(StoreError, match="empty"):
        load(path)
    assert log.read_bytes() == left


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, _make_socket, lambda path: path.symlink_to("/dev/zero")],
    ids=["folder", "pipe", "socket", "device"],
)
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], None]
) -> None:
    path = tmp_path_factory.mktemp("s") / "db"
    make(path)
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match="not a regular file"):
            refuse(path)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="file"):
        load(tmp_path / "file" / "db")
    with pytest.raises(StoreError, match="has an agent ever run here"):
        read_only(tmp_path / "nothing" / "db")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "db.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match=r"db\.lock"):
        load(tmp_path / "db")
    assert not (tmp_path / "victim").exists()


# ------------------------------------------------------------------------------------------ forms


def test_a_file_is_in_wal_mode_before_it_has_its_name(tmp_path: Path) -> None:
    """A kill while the mode changes leaves a journal, and then no reader can open the file."""
    path = tmp_path / "db"
    create(path, fill)
    assert [entry.name for entry in tmp_path.iterdir()] == ["db"]
    with path.open("rb") as file:
        assert file.read(20)[18:] == b"\x02\x02", "the versions that a reader and a writer need"
    # What a killed first start leaves is no part of the next one.
    path.unlink()
    for kind in ("", "-journal", "-wal", "-shm"):
        (tmp_path / f"db.new{kind}").write_bytes(b"left over")
    create(path, fill)
    assert [entry.name for entry in tmp_path.iterdir()] == ["db"]


def test_a_newer_form_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    alter(path, "CREATE TABLE new (x)", f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = everything(tmp_path)
    newest = len(MIGRATIONS)
    words = rf"{path}: written by a newer pinfold \(form {newest + 1}.*{newest}\); run that one"
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match=words):
            refuse(path)
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA application_id = 7", "a database, but not the agent's .name another --state-dir"),
        ("PRAGMA user_version = 0", "form has the number 0"),
        ("PRAGMA user_version = -1", "form has the number -1"),
        ("DROP TABLE containers", "not as form 11 was made: 'containers'"),
        ("CREATE TABLE more (x)", "not as form 11 was made: 'more'"),
        ("DROP INDEX active_names", "not as form 11 was made: 'active_names'"),
        (
            "CREATE TRIGGER t AFTER INSERT ON history BEGIN DELETE FROM pods; END",
            "not as form 11 was made: 't'",
        ),
    ],
)
def test_tables_that_are_not_ours_are_refused(tmp_path: Path, statement: str, words: str) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    alter(path, statement)
    before = everything(tmp_path)
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match=words):
            refuse(path)
    assert everything(tmp_path) == before
    assert 0 < APPLICATION_ID < 2**31


# ----------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _data: b"hello", "not a database"),
        (lambda data: b"\0" * len(data), "not a database"),
        (lambda data: data[:16], "not a database"),
        (lambda data: data[: len(data) // 2], "malformed|corrupt|disk image"),
        (lambda data: data[:-4096], "malformed|corrupt|disk image"),
        (lambda data: data[:200] + os.urandom(4000) + data[4200:], "malformed|corrupt|disk image"),
    ],
    ids=["text", "zeros", "header", "half", "page less", "scrambled"],
)
def test_a_damaged_file_is_refused_and_left_alone(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    path.write_bytes(damage(path.read_bytes()))
    before = everything(tmp_path)
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match=words) as caught:
            refuse(path)
        assert str(path) in caught.value.problem
        assert "to start afresh" in caught.value.remedy
        assert "cpu_manager_state" in caught.value.remedy
    assert everything(tmp_path) == before


def test_a_file_that_is_refused_keeps_its_log(tmp_path: Path) -> None:
    """A connection that may write would carry the log over when it is closed."""
    path, log = tmp_path / "db", tmp_path / "db-wal"

    async def work(store: SQLiteStore) -> tuple[bytes, bytes]:
        await store.commit(SEVERAL)
        alter(path, "PRAGMA user_version = 99")
        return path.read_bytes(), log.read_bytes()

    data, logged = with_store(path, work)
    path.write_bytes(data)
    log.write_bytes(logged)
    before = everything(tmp_path)
    assert before["db-wal"]
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match="newer pinfold"):
            refuse(path)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("seed", range(4))
def test_scattered_damage_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    """Never another kind of error, whatever the bytes; and never a record that cannot be."""
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    whole = path.read_bytes()
    chance = random.Random(seed)  # noqa: S311 - damage, not secrets
    refused = 0
    for _ in range(25):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 4, 64))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            record = read_only(path)
        except StoreError as error:
            assert str(path) in str(error)  # noqa: PT017 - either way is right
            refused += 1
        else:
            assert all(isinstance(p.phase, PodPhase) for p in record.pods.values())
    assert refused > 0


OBJECTS = "table objects, row ResourceQuota team/cpus: "
IGNORE = "PRAGMA ignore_check_constraints = ON"


def kept(manifest: str) -> str:
    key = "'ResourceQuota', 'team', 'cpus'"
    return f"INSERT INTO objects VALUES ({key}, '{manifest}', 'api')"  # noqa: S608 - texts of ours


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["UPDATE node SET default_cpus = '0-x'"], "table node: '0-x'"),
        (["UPDATE memory SET numa_nodes = '[-1]' WHERE pod = 2"], "table memory, pod 2.*nodes"),
        (["UPDATE memory SET numa_nodes = '{}' WHERE pod = 2"], "table memory, pod 2.*nodes"),
        (["UPDATE pods SET bubble = '3-1' WHERE number = 2"], "table pods, row 2: range '3-1'"),
        ([IGNORE, "UPDATE pods SET bubble = ''"], "table pods, row 1: an owner of no CPUs"),
        (
            ["UPDATE bubble_memory SET numa_nodes = '{}' WHERE pod = 2"],
            "table bubble_memory, pod 2.*nodes",
        ),
        (["UPDATE devices SET ids = '[]' WHERE pod = 2"], "table devices, pod 2.*gpu.*ids is"),
        (["UPDATE devices SET ids = '[7]' WHERE pod = 2"], "table devices, pod 2.*gpu.*ids is"),
        (
            ["UPDATE assignments SET cpus = '3-1' WHERE pod = 2 AND container = 'a'"],
            "table assignments, pod 2, container 'a': range '3-1'",
        ),
        ([IGNORE, "UPDATE assignments SET cpus = '' WHERE pod = 3"], "table assignments, pod 3"),
        ([IGNORE, "UPDATE pods SET phase = 'Odd' WHERE number = 9"], "table pods, row 9: 'Odd'"),
        (
            [IGNORE, "UPDATE pods SET manifest = '{x' WHERE number = 9"],
            "table pods, row 9: the manifest is no JSON",
        ),
        (
            ["UPDATE pods SET manifest = '7' WHERE number = 9"],
            "table pods, row 9: the manifest is no JSON object",
        ),
        (
            [IGNORE, "UPDATE history SET document = '{'"],
            "table history, row 1: the document is no JSON",
        ),
        (
            ["DELETE FROM pods WHERE number = 4"],
            r"table \w+, a row: not in table pods",
        ),
        (["UPDATE pods SET name = CAST(x'ff' AS TEXT) WHERE number = 2"], "(?i)utf-8"),
        (["INSERT INTO move VALUES (1, '{}', '{}')"], "table move: .*missing"),
        (["UPDATE assignments SET baseline = 'x'"], "table assignments.*'x'"),
        (
            [IGNORE, "UPDATE load_driven SET used = -1 WHERE pod = 2 AND container = 'a'"],
            "table load_driven, pod 2, container 'a': a usage of -1.0 CPUs",
        ),
        (["UPDATE load_driven SET used = 9e999"], "table load_driven, pod .*a usage of inf CPUs"),
        ([kept("7")], f"{OBJECTS}the manifest is of no"),
        (
            [IGNORE, kept("{")],
            f"{OBJECTS}.*property name",
        ),
        (
            [kept('{"kind": "ResourceQuota", "metadata": {}}')],
            f"{OBJECTS}the manifest is of default/",
        ),
        (
            [kept('{"kind": "ResourceQuota", "spec": 1}')],
            f"{OBJECTS}spec: must be a mapping",
        ),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, statements: list[str], words: str) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    alter(path, *statements)
    for refuse in (load, read_only):
        with pytest.raises(StoreError, match=words) as caught:
            refuse(path)
        assert caught.value.problem.startswith(f"{path}: ")
        assert "to start afresh" in caught.value.remedy


def test_rows_of_another_type_are_refused(tmp_path: Path) -> None:
    """As SQLite reads them where a page is damaged just so."""
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    alter(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ')') WHERE name = 'pods'",
    )
    alter(path, IGNORE, "UPDATE pods SET manifest = x'00' WHERE number = 3")
    alter(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = sql || ' STRICT' WHERE name = 'pods'",
    )
    with pytest.raises(StoreError, match=r"table pods|corrupt"):
        load(path)


def test_the_tables_keep_nonsense_out(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with_store(path, lambda store: store.commit(SEVERAL))
    for statement in (
        "UPDATE pods SET phase = 'Odd'",
        "UPDATE pods SET manifest = '{'",
        "UPDATE pods SET admitted_at = 'yesterday'",
        "UPDATE pods SET uid = 'uid-p1'",
        "UPDATE pods SET name = 'p1'",
        "UPDATE pods SET namespace = NULL",
        "UPDATE assignments SET cpus = ''",
        "UPDATE memory SET type = ''",
        "UPDATE memory SET numa_nodes = '['",
        "UPDATE memory SET size = -1",
        "UPDATE pods SET bubble = ''",
        "UPDATE bubble_memory SET type = ''",
        "UPDATE bubble_memory SET numa_nodes = '['",
        "UPDATE bubble_memory SET size = -1",
        "UPDATE devices SET resource = ''",
        "UPDATE devices SET ids = '['",
        "UPDATE devices SET response = 'text'",
        "UPDATE load_driven SET used = -1",
        "UPDATE load_driven SET at = NULL",
        "UPDATE load_driven SET container = ''",
        "UPDATE containers SET restarts = -1",
        "UPDATE containers SET exit_code = 'x'",
        "INSERT INTO node SELECT 2, 'none', '', '', '0', 'None', '', '', ''",
        "UPDATE history SET document = '{'",
        "UPDATE history SET kind = ''",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            alter(path, statement)
    assert tuple(load(path).pods.values()) == SEVERAL.put
