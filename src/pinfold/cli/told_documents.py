"""The text of a document in every form but JSON: loaded only where one of them is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click
import msgspec

from pinfold.cli.output import InputError, input_errors
from pinfold.config.file_text import file_text
from pinfold.config.values import ConfigError
from pinfold.core.values.cpuset import CPUSet
from pinfold.formats.yaml_writing import written_yaml
from pinfold.render.jsonpath.parts import TemplateError
from pinfold.render.jsonpath.printing import printed
from pinfold.render.jsonpath.reading import read_template

_MAX_BYTES: Final = 1 << 20
"""Of a template in a file."""
_DEFAULT_NAMESPACE: Final = "default"
_ALWAYS: Final = ("NAMESPACE", "NAME", "STATUS", "QOS", "CPUS")
_HEADS: Final = (*_ALWAYS, "NUMA", "DEVICES", "NODE", "RESTARTS", "REASON")
"""The columns of a table of pods; those that are always there keep their places."""


def teller(form: str, given: str) -> Callable[[object], str]:
    """What makes the text of a document in this form.

    Args:
        form: ``yaml``, ``name``, ``wide``, ``jsonpath`` or ``jsonpath-file``.
        given: the template of the last two.

    Raises:
        InputError: the template cannot be read.
    """
    if form == "yaml":
        return lambda document: written_yaml([plain(document)])
    if form == "name":
        return lambda document: "".join(f"{name}\n" for name in names_in(plain(document)))
    if form == "wide":
        return lambda document: pods_table(plain(document))
    with input_errors(TemplateError, prefix=f"-o {form}: "):
        template = read_template(given)
    if "{" not in given:
        click.echo(f"note: -o {form}: it has no {{...}}, so it is printed as it is", err=True)

    def by_template(document: object) -> str:
        told = plain(document)
        with input_errors(TemplateError, prefix=f"-o {form}: "):
            text = printed(template, told)
        absent = [name for name in template.fields if name not in told]
        if absent and not text.strip():
            there = ", ".join(told)
            click.echo(
                f"note: -o {form}: the document has no .{absent[0]}; it has {there}", err=True
            )
        return text

    return by_template


def plain(document: object) -> Any:  # noqa: ANN401 - whatever JSON has
    """A record as JSON has it; the name of a file in it need not be Unicode."""
    told = json.loads(json.dumps(msgspec.to_builtins(document)))
    return _sayable(told)


def _sayable(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    """With what is no character of Unicode written as a program would write it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_sayable(one) for one in value]
    if isinstance(value, dict):
        return {_sayable(key): _sayable(one) for key, one in value.items()}
    return value


def names_in(document: Mapping[str, Any]) -> Iterator[str]:
    """The names of what a document is about, as commands take them: ``pod/NAME``, ``quota/NAME``.

    Of another namespace than ``default`` it is ``pod/NAMESPACE/NAME``.
    """
    for kind, key in (("quota", "objects"), ("pod", "pods"), ("pod", "changed")):
        for one in document.get(key) or ():
            namespace = one.get("namespace") or _DEFAULT_NAMESPACE
            within = "" if namespace == _DEFAULT_NAMESPACE else f"{namespace}/"
            yield f"{kind}/{within}{one['name']}"


def pods_table(document: Mapping[str, Any]) -> str:
    """A row for each pod, below a head; columns in which nobody has anything are not there.

    Raises:
        InputError: the document has no list of pods.
    """
    if "pods" not in document:
        raise InputError("-o wide: this answer has no list of pods; -o name has names, json all")
    rows = [*map(_row, document["pods"])]
    # A plan of several nodes tells of a pod where it is, and of its containers with the node.
    always = _ALWAYS if any("containers" in one for one in document["pods"]) else _ALWAYS[:3]
    heads = [head for head in _HEADS if head in always or any(row[head] for row in rows)]
    lines = [heads, *([row[head] or "<none>" for head in heads] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("   ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "".join(f"{text}\n" for text in texts)


def _row(pod: Mapping[str, Any]) -> dict[str, str]:
    containers = pod.get("containers") or ()
    bubble = pod.get("bubble") or {}
    owned = [one["cpus"] for one in containers if one.get("exclusive")]
    cpus = CPUSet.parse(bubble.get("cpus") or "")
    for text in owned:
        cpus |= CPUSet.parse(text)
    nodes = sorted({node for one in containers for node in one.get("numa_nodes") or ()})
    devices = (ids for one in containers for ids in (one.get("devices") or {}).values())
    status = pod.get("phase") or ("Admitted" if pod.get("admitted") else "Rejected")
    restarts = sum(one.get("restarts") or 0 for one in containers)
    if status == "Running" and any(map(_fails_again, containers)):
        status = "CrashLoopBackOff"
    return {
        "NAMESPACE": pod["namespace"],
        "NAME": pod["name"],
        "STATUS": status,
        "REASON": pod.get("reason") or "",
        "RESTARTS": str(restarts or ""),
        "QOS": pod.get("qos") or "",
        "CPUS": str(cpus),
        "NUMA": ",".join(map(str, nodes)),
        "DEVICES": ",".join(one for ids in devices for one in ids),
        "NODE": pod.get("node") or "",
    }


def _fails_again(container: Mapping[str, Any]) -> bool:
    """Whether it has ended and waits for the next of several attempts, in kubectl's word."""
    return bool(container.get("restarts") and container.get("exit_code"))


def template_in(path: str) -> str:
    """The template that a file holds; raises InputError where it cannot be read."""
    with input_errors(ConfigError, prefix="-o jsonpath-file="):
        return file_text(path, _MAX_BYTES, "a template")
