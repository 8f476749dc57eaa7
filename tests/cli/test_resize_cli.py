"""``pinfold resize``: whom it means, and what it says where nobody is meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s") as server:
        server.ask("POST", "/v1/pods", manifest("db", "2"))
        yield server


def resize(api: Served, *words: str) -> Result:
    return CliRunner().invoke(main, ["resize", "--socket", str(api.path), *words])


@pytest.mark.parametrize(
    "place",
    [
        *(["pod/db"], ["db"], ["default/db"], ["pod/db/c0"], ["pod/default/db/c0"]),
        *(["pod/db", "-c", "c0"], ["pod/db/c0", "--container", "c0"], ["uid-db"]),
    ],
)
def test_whom_it_means(api: Served, place: list[str]) -> None:
    result = resize(api, *place, "--cpus", "2")
    assert (result.exit_code, result.output) == (0, "default/db c0: CPUs 2-3, as before\n")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["pod/default/db"], 1, "; pod db of namespace default is default/db"),
        (["db/c0"], 1, "; container c0 of pod db is pod/db/c0"),
        (["pod/other"], 1, "there is no pod default/other"),
        (["pod/a/b/c/d"], 2, "names no container of a pod; write pod/NAME[/CONTAINER]"),
        (["pod/../../x"], 2, "names no container of a pod; write pod/NAME[/CONTAINER]"),
        (["pod/db/c0", "-c", "c1"], 2, "two containers: c0 and c1"),
    ],
)
def test_what_it_says_where_nobody_is_meant(
    api: Served, words: list[str], status: int, said: str
) -> None:
    result = resize(api, *words, "--cpus", "2")
    assert result.exit_code == status
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("count", ["1.5", "0", "-1", "99999999999999999999", "x", "1e3", "500m"])
def test_what_is_no_number_of_cpus(count: str) -> None:
    result = CliRunner().invoke(
        main, ["resize", "pod/m", f"--cpus={count}", "--socket", "/nowhere"]
    )
    assert result.exit_code == 2
    assert f"'{count}' is no whole number of CPUs from 1 to 999999" in result.output
