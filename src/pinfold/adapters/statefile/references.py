"""Which pods and containers exist: lists that ``kubectl`` and ``crictl`` print, or plain ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pinfold.adapters.statefile.files import StateFileError, read_state_file
from pinfold.formats.json_or_yaml import DocumentError, read_documents

_POD_UID: Final = "io.kubernetes.pod.uid"
_UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,252}")
_CONTAINER_NAME: Final = "io.kubernetes.container.name"


def read_pod_uids(text: str) -> frozenset[str]:
    """Pod uids from ``text``: a list with commas, or the path of a file.

    The file may be what ``kubectl get pods -o json`` or ``-o yaml``, ``crictl pods -o json`` or
    ``crictl ps -o json`` print, a manifest whose pods have a ``metadata.uid``, or one uid a line.

    Raises:
        StateFileError: unreadable, or without a pod uid.
    """
    path = Path(text)
    try:
        is_file = path.exists()
    except OSError:  # a long list is no possible path
        is_file = False
    if not is_file:
        words = text.replace(",", " ").split()
        # A file that is not there, taken for a uid, would make every pod look vanished.
        wrong = next((word for word in words if _UID.fullmatch(word) is None or "." in word), None)
        if wrong is not None or not words:
            raise StateFileError(
                f"{text[:80]!r} is neither a file that is there nor a list of pod uids, with commas"
            )
        return frozenset(words)
    content = _text(path)
    document = _document(content)
    uids = frozenset(_uids(document) if document is not None else _plain_uids(path, content))
    if not uids:
        raise StateFileError(f"{path} names no pod uid (metadata.uid)")
    return uids


def _plain_uids(path: Path, content: str) -> list[str]:
    # A uid that is none would make every pod look vanished.
    words = content.replace(",", " ").split()
    wrong = next((word for word in words if _UID.fullmatch(word) is None), None)
    if wrong is not None:
        raise StateFileError(f"{path}: {wrong[:40]!r} is no pod uid")
    return words


def read_container_ids(path: Path) -> dict[str, tuple[str, str]]:
    """Container id -> (pod uid, container name), from a file.

    The file is what ``crictl ps -a -o json`` prints, or has lines ``POD_UID NAME CONTAINER_ID``.

    Raises:
        StateFileError: unreadable, or of another form.
    """
    content = _text(path)
    document = _document(content)
    if document is not None:
        found = dict(_containers(document))
        if not found:
            raise StateFileError(f"{path} is not what `crictl ps -a -o json` prints")
        return found
    ids = {}
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3:
            raise StateFileError(f"{path}:{number}: expected POD_UID CONTAINER_NAME CONTAINER_ID")
        ids[words[2]] = (words[0], words[1])
    return ids


def _text(path: Path) -> str:
    try:
        return read_state_file(path).decode()
    except UnicodeDecodeError:
        raise StateFileError(f"{path} is not UTF-8 text") from None


def _document(text: str) -> Any:  # noqa: ANN401 - foreign JSON or YAML
    """The JSON or YAML value of a text, ``None`` when it is plain lines."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if "metadata:" not in text:
        return None
    try:
        return [document.content for document in read_documents(text)]
    except DocumentError as error:
        raise StateFileError(f"neither JSON nor YAML: {' '.join(str(error).split())}") from None


def _uids(value: object) -> Iterator[str]:
    # One level of lists is what the tools print; deeper ones (YAML aliases) could be a bomb.
    objects = value if isinstance(value, list) else [value]
    for outer in objects:
        listed = _dig(outer, "items") or _dig(outer, "containers")
        for item in [outer, *(listed if isinstance(listed, list) else ())]:
            for uid in (_dig(item, "metadata", "uid"), _dig(item, "labels", _POD_UID)):
                if isinstance(uid, str) and uid:
                    yield uid


def _containers(value: object) -> Iterable[tuple[str, tuple[str, str]]]:
    containers = value.get("containers") if isinstance(value, Mapping) else None
    for container in containers if isinstance(containers, list) else ():
        found = (
            _dig(container, "id"),
            _dig(container, "labels", _POD_UID),
            _dig(container, "labels", _CONTAINER_NAME),
        )
        container_id, uid, name = found
        if isinstance(container_id, str) and isinstance(uid, str) and isinstance(name, str):
            yield container_id, (uid, name)


def _dig(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
