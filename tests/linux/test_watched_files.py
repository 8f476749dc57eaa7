"""Files that others change are looked at when they have, and at no other time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from pinfold.linux.watched_files import looks_at
from tests.scenes.waiting import PATIENCE


def test_a_folder_above_that_is_never_at_rest_keeps_nobody_waiting(tmp_path: Path) -> None:
    folder, noise = tmp_path / "certificates", tmp_path / "log"
    folder.mkdir()

    async def write() -> None:
        for number in range(1_000_000):
            noise.write_text(str(number))
            (tmp_path / f"passing-{number % 2}").write_text("")
            (tmp_path / f"passing-{number % 2}").unlink()
            await asyncio.sleep(0.005)

    async def scenario() -> None:
        async with (
            asyncio.timeout(20 * PATIENCE),
            aclosing(looks_at([folder / "tls.crt"])) as looks,
        ):
            assert await anext(looks) is True
            writing = asyncio.create_task(write())
            try:
                (folder / "tls.crt").write_text("a")
                assert await anext(looks) is False
                # Another folder of that name is looked at, too.
                folder.rename(tmp_path / "before")
                folder.mkdir()
                assert await anext(looks) is False
                (folder / "tls.crt").write_text("b")
                assert await anext(looks) is False
                # Nothing of its own has changed: what comes next is not told.
                following = asyncio.ensure_future(anext(looks))
                for _ in range(40):
                    await asyncio.sleep(0.01)
                assert not following.done()
                (folder / "tls.crt").write_text("c")
                assert await following is False
            finally:
                writing.cancel()

    asyncio.run(scenario())


def test_changes_that_do_not_end_are_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"

    async def write() -> None:
        while True:
            file.write_text("a")
            await asyncio.sleep(0.005)

    async def scenario() -> None:
        async with asyncio.timeout(20 * PATIENCE), aclosing(looks_at([file])) as looks:
            assert await anext(looks) is True
            writing = asyncio.create_task(write())
            try:
                assert await anext(looks) is False
            finally:
                writing.cancel()

    asyncio.run(scenario())
