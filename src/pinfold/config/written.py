"""A KubeletConfiguration as it is written: a file, and the drop-ins of a folder over it.

Source: upstream ``cmd/kubelet/app/server.go`` (``mergeKubeletConfigurations``) and
``kubelet/kubeletconfig/configfiles`` (1.36).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pinfold.config.file_text import file_text
from pinfold.config.values import ConfigError, show
from pinfold.core.kubelet.eviction import DEFAULT_EVICTION_HARD
from pinfold.formats.json_or_yaml import Document, DocumentError, read_documents

MAX_BYTES: Final = 4 * 1024 * 1024
KIND: Final = "KubeletConfiguration"
API_GROUP: Final = "kubelet.config.k8s.io"
VERSION: Final = f"{API_GROUP}/v1beta1"
EXTENSION: Final = ".conf"
_HEADER: Final = f"it starts with apiVersion: {VERSION} and kind: {KIND}"
_CONFIG_MAP: Final = (
    "one is in data.kubelet of kubectl -n kube-system get configmap kubelet-config -o yaml"
)
_GATES: Final = "featureGates"
_EVICTION: Final = "evictionHard"
_WITH_DEFAULTS: Final = "mergeDefaultEvictionSettings"


class ConfigPart(Struct, frozen=True):
    """One of the files that a configuration is written in, with the fields that it sets."""

    path: str
    fields: Mapping[Any, Any]


class WrittenConfig(Struct, frozen=True):
    """The fields of a configuration, as they are in YAML or JSON.

    ``sources`` are the file and the folder that were asked for, ``parts`` all files in the order in
    which they are laid over one another; ``notes`` say what of them was left out.
    """

    sources: tuple[str, ...] = ()
    fields: Mapping[Any, Any] = {}
    parts: tuple[ConfigPart, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What errors call all of it; "" where nothing is written."""
        return " with ".join(self.sources)

    def changed(self, name: str, fields: Mapping[Any, Any]) -> WrittenConfig:
        """The same with other fields, called otherwise; what differs is of no file."""
        differs = {key: one for key, one in fields.items() if self.fields.get(key) != one}
        return WrittenConfig((name,), fields, (*self.parts, ConfigPart(name, differs)), self.notes)

    def without_gates(self, gates: Collection[str]) -> WrittenConfig:
        """The same without some feature gates."""

        def less(fields: Mapping[Any, Any]) -> Mapping[Any, Any]:
            written = fields.get(_GATES)
            if not isinstance(written, Mapping):
                return fields
            kept = {name: on for name, on in written.items() if str(name) not in gates}
            return {**fields, _GATES: kept}

        parts = tuple(ConfigPart(one.path, less(one.fields)) for one in self.parts)
        return WrittenConfig(self.sources, less(self.fields), parts, self.notes)


def read_config(path: str | None, config_dir: str | None = None) -> WrittenConfig:
    """Read a KubeletConfiguration, in YAML or JSON, and the drop-ins over it.

    What a kubelet serves at ``/configz`` and the ConfigMap ``kubelet-config`` are read as well; of
    a file with several documents, such as kubeadm's, the one that is a KubeletConfiguration.

    Args:
        path: the file; None: the kubelet's defaults.
        config_dir: a folder of drop-ins, as the kubelet's ``--config-dir``: all ``*.conf`` files in
            it and below it, by name.  Maps are merged, all else is replaced, and a field that is
            null is as if nobody had set it.

    Raises:
        ConfigError: what cannot be read, or is no KubeletConfiguration; the message names the file.
    """
    notes: list[str] = []
    main = WrittenConfig(fields={"apiVersion": VERSION, "kind": KIND})
    if path is not None:
        fields = _fields(path, notes)
        main = WrittenConfig((path,), fields, (ConfigPart(path, fields),), tuple(notes))
    return main if config_dir is None else with_drop_ins(main, config_dir)


def with_drop_ins(main: WrittenConfig, config_dir: str) -> WrittenConfig:
    """Lay the drop-ins of a folder over a configuration; raises as :func:`read_config`."""
    notes: list[str] = []
    over = [
        ConfigPart(file, _fields(file, notes, is_drop_in=True))
        for file in _drop_ins(config_dir, notes)
    ]
    fields = _merged(main.fields, over)
    sources = (*main.sources, config_dir)
    return WrittenConfig(sources, fields, (*main.parts, *over), (*main.notes, *notes))


def held_config(held: Mapping[Any, Any], path: str) -> WrittenConfig:
    """A KubeletConfiguration that is in another file, where its header may be left out.

    Raises:
        ConfigError: it has the header of something else.
    """
    fields = _with_header({"apiVersion": VERSION, "kind": KIND, **held}, path)
    return WrittenConfig((path,), fields, (ConfigPart(path, fields),))


def _merged(main: Mapping[Any, Any], over: Sequence[ConfigPart]) -> dict[Any, Any]:
    """The drop-ins laid over the file; the defaults of ``evictionHard`` are there before them."""
    eviction = main.get(_EVICTION)
    fields = dict(main)
    if eviction is None:
        fields[_EVICTION] = dict(DEFAULT_EVICTION_HARD)
    elif main.get(_WITH_DEFAULTS) is True and isinstance(eviction, Mapping):
        fields[_EVICTION] = {**DEFAULT_EVICTION_HARD, **eviction}
    for part in over:
        fields = _patched(fields, part.fields)
    fields.setdefault(_EVICTION, {})
    # What it asks for has been done; the kubelet does not do it for a drop-in.
    fields.pop(_WITH_DEFAULTS, None)
    return fields


def _patched(fields: object, patch: Mapping[Any, Any]) -> dict[Any, Any]:
    """A JSON merge patch (RFC 7386)."""
    patched = dict(fields) if isinstance(fields, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            patched.pop(name, None)
        elif isinstance(value, Mapping):
            patched[name] = _patched(patched.get(name), value)
        else:
            patched[name] = value
    return patched


def _drop_ins(folder: str, notes: list[str]) -> Iterator[str]:
    """The files of a folder of drop-ins, in the order of the kubelet."""
    if not Path(folder).is_dir():
        problem = "not a folder" if Path(folder).exists() else "No such file or directory"
        raise ConfigError(f"{problem}; --config-dir takes a folder of *{EXTENSION} files", folder)
    if Path(folder).is_symlink() and not folder.endswith(os.sep):
        # Its lstat says that it is no folder (filepath.WalkDir).
        notes.append(
            f"{folder}: a symbolic link, which a kubelet does not follow: no file in it is read; "
            f"write {folder}{os.sep}"
        )
        return
    files = [*_walk(folder)]
    yield from files
    if not files:
        notes.append(f"{folder}: no file *{EXTENSION} in it")


def _walk(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise ConfigError(f"{error.strerror or error}", folder) from None
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.name.endswith(EXTENSION):
            if Path(entry.path).is_fifo():
                # A kubelet would wait for its writer, maybe for ever.
                raise ConfigError("not a regular file; move it out of the folder", entry.path)
            yield entry.path


def _fields(path: str, notes: list[str], *, is_drop_in: bool = False) -> Mapping[Any, Any]:
    documents = _documents(path, file_text(path, MAX_BYTES, f"a {KIND}"))
    if not is_drop_in:
        documents = [Document(one.line, _unwrapped(path, one.content, notes)) for one in documents]
    return _with_header(_only(path, documents, notes), path)


def _with_header(fields: Mapping[Any, Any], path: str) -> Mapping[Any, Any]:
    kind, version = fields.get("kind"), fields.get("apiVersion")
    if kind != KIND or str(version).partition("/")[0] != API_GROUP:
        remedy = _CONFIG_MAP if kind == "ConfigMap" else _HEADER
        raise ConfigError(
            f"no {KIND} (kind: {show(kind)}, apiVersion: {show(version)}); {remedy}", path
        )
    if version != VERSION:
        raise ConfigError(
            f'no kind "{KIND}" is registered for version "{version}"; {_HEADER}', path
        )
    return fields


def _unwrapped(path: str, document: object, notes: list[str]) -> object:
    """The configuration itself, where a tool has put it into something else."""
    if not isinstance(document, dict):
        return document
    served = document.get("kubeletconfig")
    if isinstance(served, dict) and len(document) == 1:
        # A kubelet serves what it runs with at /configz, without the header.
        return {"apiVersion": VERSION, "kind": KIND, **served}
    data = document.get("data")
    if document.get("kind") == "ConfigMap" and isinstance(data, dict):
        # kubeadm keeps it as a text in the ConfigMap kubelet-config.
        held = data.get("kubelet")
        if isinstance(held, str):
            where = f"{path}: data.kubelet"
            return _only(where, _documents(where, held), notes)
    return document


def _documents(path: str, text: str) -> list[Document]:
    try:
        return list(read_documents(text))
    except DocumentError as error:
        raise ConfigError(str(error), path) from None


def _only(path: str, documents: Sequence[Document], notes: list[str]) -> Mapping[Any, Any]:
    """The one document that is a configuration; what else there is was left out."""
    for one in documents:
        if not isinstance(one.content, dict):
            where = f"{path}: line {one.line}" if len(documents) > 1 else path
            raise ConfigError(f"must be a mapping, not {show(one.content)}; {_HEADER}", where)
    if len(documents) == 1:
        return _content(documents[0])
    if not documents:
        raise ConfigError(f"must hold one {KIND}, not nothing; {_HEADER}", path)
    meant = [one for one in documents if _content(one).get("kind") == KIND]
    others = ", ".join(
        f"{show(_content(one).get('kind'))} (line {one.line})"
        for one in documents
        if one not in meant
    )
    if not meant:
        raise ConfigError(f"no {KIND} in it, but {others}; {_HEADER}", path)
    if len(meant) > 1:
        lines = " and ".join(f"line {one.line}" for one in meant)
        raise ConfigError(
            f"{len(meant)} documents of kind {KIND} ({lines}); leave one, or lay the other over it "
            "as a file of --config-dir",
            path,
        )
    notes.append(f"{path}: left out beside the {KIND}: {others.replace(chr(39), '')}")
    return _content(meant[0])


def _content(document: Document) -> Mapping[Any, Any]:
    return document.content if isinstance(document.content, dict) else {}
