"""Profiles of a node: those that come with Pinfold, and files of one's own.

The form is :class:`pinfold.core.profile.profile.ProfileFile`, in YAML or JSON
(docs/how-to/check-a-node-profile.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from pinfold.config.file_text import UnreadableError, file_text
from pinfold.config.settings import SETTINGS
from pinfold.config.values import ConfigError, show
from pinfold.core.pod.api import as_yaml
from pinfold.core.profile.check import Fact
from pinfold.core.profile.profile import Profile, ProfileFile, Read, whole_profile
from pinfold.formats.json_or_yaml import DocumentError, read_documents

__all__ = ["BUILT_IN", "ConfigError", "kubelet_facts", "load_profile", "profile_text"]

BUILT_IN: Final = ("standard", "tuned", "hyper-tuned")
"""The names of the profiles that come with Pinfold; each includes the one before."""

MAX_BYTES: Final = 1024 * 1024
_FOLDER: Final = Path(__file__).with_name("profiles")
_HEADER: Final = "it starts with kind: NodeProfile and version: 1"
_DEFAULTS: Final = {setting.field: setting.default for setting in SETTINGS if setting.default}


def profile_text(name: str) -> str:
    """The file of a profile that comes with Pinfold, to be copied.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in BUILT_IN:
        raise ConfigError(f"there is no profile {show(name)}; there are {', '.join(BUILT_IN)}")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def load_profile(source: str) -> Profile:
    """Read a profile: the name of one that comes with Pinfold, or a file.

    Raises:
        ConfigError: no such file, or no profile; the message names the file and the place in it.
    """
    if source in BUILT_IN:
        return _profile(source, profile_text(source))
    try:
        text = file_text(source, MAX_BYTES, "a profile")
    except UnreadableError as error:
        known = f"a profile is a file or one of {', '.join(BUILT_IN)}"
        raise ConfigError(f"{error.problem}; {known}", error.where) from None
    return _profile(source, text)


def _profile(path: str, text: str) -> Profile:
    try:
        documents = [document.content for document in read_documents(text)]
    except DocumentError as error:
        raise ConfigError(str(error), path) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigError(f"must hold one mapping; {_HEADER}", path)
    content = documents[0]
    if content.get("kind") != "NodeProfile":
        raise ConfigError(f"kind: must be NodeProfile, not {show(content.get('kind'))}", path)
    try:
        file = msgspec.convert(content, ProfileFile)
        base = None
        if file.includes is not None:
            if file.includes not in BUILT_IN or file.includes == path:
                listed = ", ".join(BUILT_IN)
                raise ConfigError(
                    f"includes: must be one of {listed}, not {show(file.includes)}", path
                )
            base = load_profile(file.includes)
        return whole_profile(file, base)
    except msgspec.ValidationError as error:
        raise ConfigError(_problem(str(error), content), path) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(str(error), path) from None


def _problem(problem: str, content: Mapping[Any, Any]) -> str:
    """A problem with the place first, and the name of the row that it is in."""
    text, _, place = problem.partition(" - at `$")
    where = place.rstrip("`").lstrip(".")
    row = re.match(r"rows\[(\d+)\]", where)
    name = ""
    if row is not None:
        rows = content.get("rows")
        found = rows[int(row[1])] if isinstance(rows, list) and int(row[1]) < len(rows) else None
        if isinstance(found, dict) and isinstance(found.get("name"), str):
            name = f" ({found['name'][:40]})"
    return f"{where}{name}: {text}"[:300] if where else text[:300]


def kubelet_facts(reads: Iterable[str], fields: Mapping[Any, Any] | None) -> dict[str, Fact]:
    """What a KubeletConfiguration says of the fields that rows read; None: there is none.

    A field that is not set has the kubelet's default where that is known here, else it is absent.
    """
    return {
        text: _field(Read.parse(text).name, fields)
        for text in reads
        if Read.parse(text).kind == "kubelet"
    }


def _field(name: str, fields: Mapping[Any, Any] | None) -> Fact:
    if fields is None:
        return Fact(unknown="the kubelet's configuration is not known; give --kubelet-config")
    field, _, key = name.partition(".")
    value = fields.get(field)
    if key:
        value = value.get(key) if isinstance(value, dict) else None
    elif value in (None, "") and field in _DEFAULTS:
        value = _DEFAULTS[field]
    if value in (None, ""):
        return Fact(absent=True)
    return Fact({-1: value if isinstance(value, str) else as_yaml(value)})
