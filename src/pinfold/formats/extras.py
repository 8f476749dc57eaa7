"""What to type where an extra of the package is not installed: as the package itself was."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

_MARKS: Final = {
    "pipx_metadata.json": "pipx install --force",
    "uv-receipt.toml": "uv tool install --force",
}
"""The file that a tool leaves in the environment it makes, and how that tool installs."""
_ORIGIN: Final = "direct_url.json"
_FILE: Final = "file://"
_UNKNOWN: Final = "(WHEEL: the path of its wheel or of a checkout; docs/how-to/install.md)"


class _Folder(Struct, frozen=True):
    editable: bool = False


class _Repository(Struct, frozen=True):
    vcs: str
    commit_id: str
    requested_revision: str = ""


class _Origin(Struct, frozen=True):
    """Where a package came from, as installers write it down.

    Source: the Python packaging specification of ``direct_url.json``.
    """

    url: str
    subdirectory: str = ""
    dir_info: _Folder | None = None
    vcs_info: _Repository | None = None

    def requirement(self, extra: str) -> str:
        """What to install for an extra; "" where it is not there any more."""
        below = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        if self.vcs_info is not None:
            revision = self.vcs_info.requested_revision or self.vcs_info.commit_id
            return f"pinfold[{extra}] @ {self.vcs_info.vcs}+{self.url}@{revision}{below}"
        if not self.url.startswith(_FILE):
            return f"pinfold[{extra}] @ {self.url}{below}"
        path = Path(unquote(self.url.removeprefix(_FILE))) / self.subdirectory
        return f"{path}[{extra}]" if path.exists() else ""


def missing_library(error: ImportError) -> str:
    """The library that could not be imported, for which there is an extra.

    Raises:
        ImportError: it is a module of our own, which is no matter of extras.
    """
    if (error.name or "").partition(".")[0] == "pinfold":
        raise error
    return error.name or "more"


def install_command(
    extra: str, environment: Path | None = None, packages: Sequence[str] | None = None
) -> str:
    """The command that installs the package with an extra, from where the package came.

    Nothing is published: by its name an index has nothing, or a stranger's.

    Args:
        extra: such as ``agent``, or several with commas.
        environment: the one of Python; that of this process where it is not said.
        packages: folders of installed packages; those of this process where they are not said.
    """
    place = environment or Path(sys.prefix)
    found = (command for mark, command in _MARKS.items() if (place / mark).exists())
    command = next(found, "pip install")
    origin = _origin(packages)
    requirement = "" if origin is None else origin.requirement(extra)
    if origin is None or not requirement:
        return f"{command} 'WHEEL[{extra}]' {_UNKNOWN}"
    editable = "--editable " * (origin.dir_info is not None and origin.dir_info.editable)
    return f"{command} {editable}{shlex.quote(requirement)}"


def _origin(packages: Sequence[str] | None) -> _Origin | None:
    """Where the package that is imported first came from; None: nobody has said so."""
    from importlib.metadata import distributions  # noqa: PLC0415 - 45 ms

    found = distributions(name="pinfold", path=list(sys.path if packages is None else packages))
    package = next(iter(found), None)
    told = None if package is None else package.read_text(_ORIGIN)
    try:
        return msgspec.json.decode(told or "null", type=_Origin | None)
    except msgspec.DecodeError:
        return None
