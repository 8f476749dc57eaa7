"""What the values of options and arguments are, for who completes them.

By what the help calls a value, which is the same in all commands; where one word is called so that
means several things, by the option's own name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

from pinfold.cli import COMMANDS
from pinfold.cli.options.agents import NAMESPACE as AGENTS_NAMESPACE
from pinfold.cli.start.status_words import rows_of
from pinfold.completion.table import Values, Word
from pinfold.config.node_profiles import BUILT_IN
from pinfold.core.kubelet.feature_gates import FEATURE_GATES
from pinfold.core.kubelet.node_config import STATIC
from pinfold.core.kubelet.own_policies import OWN_POLICIES
from pinfold.core.kubelet.policy_options import (
    CPU_MANAGER_OPTIONS,
    TOPOLOGY_MANAGER_OPTIONS,
    OptionFamily,
)
from pinfold.core.kubelet.versions import RELEASES
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.documents.schemas import DOCUMENTS
from pinfold.render.history_text import KINDS


def _words(words: Iterable[str]) -> Values:
    return Values(tuple((word, "") for word in words))


def _pairs(family: OptionFamily) -> Iterable[Word]:
    for option in family.options:
        values = ("true", "false") if option.kind is bool else ("8",)
        for name in (option.name, *option.aliases):
            yield from ((f"{name}={value}", option.help) for value in values)


_GATES: Final = Values(
    tuple(
        (f"{gate.name}={value}", gate.effect)
        for gate in FEATURE_GATES
        for value in ("true", "false")
    )
)
_VERSIONS: Final = Values(
    tuple((f"1.{one.version.minor}", "" if one.is_recorded else "as proposed") for one in RELEASES)
)
_MACHINES: Final = Values(
    (
        ("2s16c2t", "two sockets of 16 cores with two threads each"),
        ("1s8c2t", "one socket of 8 cores with two threads each"),
        ("2s2n16c2t", "two sockets with two NUMA nodes each"),
        ("2s16c2t@half", "sibling threads numbered in the second half"),
        ("2s16c2t@alternate", "CPUs numbered from socket to socket"),
    ),
    files="files",
)
_RESERVED: Final = _words(("cpu=", "memory=", "ephemeral-storage=", "pid="))

FREE: Final = Values()
"""What nobody can know: a number, a name to be, a time."""
_FILES: Final = Values(files="files")
_FOLDERS: Final = Values(files="folders")
_PODS: Final = Values(source="pods")

_BY_OPTION: Final = {
    "--policy": _words(("none", STATIC, *OWN_POLICIES)),
    "--cpu-manager-policy": _words(("none", STATIC, *OWN_POLICIES)),
    "--policy-option": Values(tuple(_pairs(CPU_MANAGER_OPTIONS))),
    "--cpu-manager-policy-options": Values(tuple(_pairs(CPU_MANAGER_OPTIONS))),
    "--topology-manager-policy": _words(one.value for one in Policy),
    "--topology-manager-scope": _words(one.value for one in Scope),
    "--topology-manager-policy-options": Values(tuple(_pairs(TOPOLOGY_MANAGER_OPTIONS))),
    "--kube-reserved": _RESERVED,
    "--system-reserved": _RESERVED,
    # That of a cluster; the namespaces that are known here are those of this machine's pods.
    "--agents-namespace": _words((AGENTS_NAMESPACE,)),
    "--container": Values(source="containers"),
    "--pod": Values(source="pod names"),
    "--kind": Values(tuple((kind, "") for kind in KINDS), several=True),
    "--profile": Values(tuple((name, "") for name in BUILT_IN), files="files"),
    "--executor": _words(("processes", "dask")),
}
"""Values of options, by the last of their names."""

_BY_METAVAR: Final = {
    "FILE": _FILES,
    "FILE...": _FILES,
    "FILE.html": _FILES,
    "PATH": _FILES,
    "MANIFEST...": _FILES,
    "[MANIFEST...]": _FILES,
    "NAME|FILE": _FILES,
    "UIDS|FILE": _FILES,
    "DIR": _FOLDERS,
    "SRC": _MACHINES,
    "V": _VERSIONS,
    "K=BOOL": _GATES,
    "NAMESPACE": Values(source="namespaces"),
    "NAME[=MACHINE]": Values(source="nodes"),
    "pod/NAME": _PODS,
    "[pod/NAME]": _PODS,
    "pod/NAME[/CONTAINER]": _PODS,
    "pod/NAME[/CONTAINER]=N": Values(source="places"),
    "pod/NAME|quota/NAME...": Values(source="pods and quotas"),
    "[MANIFEST|pod/NAME|KIND/NAME...]": Values(source="pods", files="files"),
}
"""Values by what the help calls them."""

_BY_ARGUMENT: Final = {
    ("schema",): Values(
        (
            *((name, one.where.replace("`", "")) for name, one in DOCUMENTS.items()),
            ("openapi", "the local API"),
        )
    ),
    ("profile", "show"): _words(BUILT_IN),
    ("man",): Values(tuple(COMMANDS.items())),
    ("run",): Values(source="programs"),
}
"""Values of the argument of a command whose help has no word for it."""


def values_of(parameter: click.Parameter, command: tuple[str, ...]) -> Values:
    """What may stand for the value of an option or an argument of a command."""
    if isinstance(parameter.type, click.Choice):
        # What follows a form such as jsonpath=EXPR is for whoever types it to know.
        shown = (str(one).partition("=") for one in parameter.type.choices)
        return _words(f"{name}{equals}" for name, equals, _ in shown)
    if isinstance(parameter, click.Argument) and command in _BY_ARGUMENT:
        return _BY_ARGUMENT[command]
    if parameter.name == "explain_exit":
        rows = rows_of(" ".join(command))
        return Values(
            tuple((str(row.status), row.meaning) for row in rows if row.status is not None)
        )
    found = _BY_OPTION.get(parameter.opts[-1]) or _BY_METAVAR.get(parameter.metavar or "")
    if found is None and isinstance(parameter.type, click.Path):
        return _FILES
    return found or FREE
