"""An extra that is missing is named with the command that the package was installed with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinfold.formats.extras import install_command
from tests.roots import ROOT

GIT = {"vcs": "git", "commit_id": "0123abc"}


def told(folder: Path, origin: object) -> str:
    """The command where the package was installed from there."""
    packages = folder / "packages"
    about = packages / "pinfold-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pinfold\nVersion: 0.1.0\n")
    if origin is not None:
        (about / "direct_url.json").write_text(
            origin if isinstance(origin, str) else json.dumps(origin)
        )
    return install_command("agent", folder, [str(packages)])


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("pipx_metadata.json", "pipx install --force"),
        ("uv-receipt.toml", "uv tool install --force"),
        ("pyvenv.cfg", "pip install"),
    ],
)
def test_the_command_is_that_of_the_tool_and_the_place_where_the_package_came_from(
    mark: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / mark).touch()
    wheel = tmp_path / "a place" / "pinfold-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    origin = {"url": wheel.as_uri(), "archive_info": {"hash": "sha256=00"}}
    assert told(tmp_path, origin) == f"{command} '{wheel}[agent]'"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///", "dir_info": {}}, "pip install '/[agent]'"),
        (
            {"url": "file:///", "dir_info": {"editable": True}, "subdirectory": "usr"},
            "pip install --editable '/usr[agent]'",
        ),
        (
            {"url": "https://git.example/p.git", "vcs_info": GIT},
            "pip install 'pinfold[agent] @ git+https://git.example/p.git@0123abc'",
        ),
        (
            {
                "url": "https://git.example/p.git",
                "subdirectory": "python",
                "vcs_info": {**GIT, "requested_revision": "main"},
            },
            "pip install 'pinfold[agent] @ git+https://git.example/p.git@main#subdirectory=python'",
        ),
        (
            {"url": "https://files.example/pinfold.whl", "archive_info": {}},
            "pip install 'pinfold[agent] @ https://files.example/pinfold.whl'",
        ),
    ],
)
def test_a_folder_a_repository_and_a_file_elsewhere_are_named(
    origin: object, command: str, tmp_path: Path
) -> None:
    assert told(tmp_path, origin) == command


@pytest.mark.parametrize(
    "origin",
    [None, "", "[]", {"url": "file:///not/there.whl", "archive_info": {}}],
)
def test_where_nobody_knows_it_no_name_of_an_index_is_told(origin: object, tmp_path: Path) -> None:
    assert told(tmp_path, origin) == (
        "pip install 'WHEEL[agent]' "
        "(WHEEL: the path of its wheel or of a checkout; docs/how-to/install.md)"
    )


def test_of_a_package_that_is_not_installed_no_name_of_an_index_is_told(tmp_path: Path) -> None:
    assert "'WHEEL[agent]'" in install_command("agent", tmp_path, [str(tmp_path)])


def test_of_this_environment() -> None:
    assert install_command("agent,cluster").endswith(f" --editable '{ROOT}[agent,cluster]'")
