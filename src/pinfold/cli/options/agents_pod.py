"""The pod of a node's agent, in which a command is run by the user's own ``kubectl``."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import click
from msgspec import Struct

from pinfold.cli.output import InputError, Refused
from pinfold.cli.start.words import words_of
from pinfold.core.values.names import label_problems, subdomain_problems
from pinfold.linux.endings import exit_status

_LABEL: Final = "app.kubernetes.io/name=pinfold"
_CONTAINER: Final = "agent"
_PROGRAM: Final = ("python", "-m", "pinfold")
_OWN: Final = ("--node", "--context", "--agents-namespace")
_OWN_FLAGS: Final = ("--verbose",)
_FORBIDDEN: Final = "(Forbidden)"
_ENDED: Final = "command terminated with exit code "
_COLUMNS: Final = 80
_TEMPLATE_FILE: Final = "jsonpath-file="


class AgentsPod(Struct, frozen=True):
    """The pod of the agent of a node."""

    name: str
    node: str
    namespace: str
    kubectl: tuple[str, ...]
    """``kubectl``, with what it needs to find the cluster and the namespace."""
    verbose: bool

    @classmethod
    def on(cls, node: str, context: str | None, namespace: str, *, verbose: bool) -> AgentsPod:
        """Find it; exits with one line where there is none, or where that may not be asked."""
        _check_name("--node", node, subdomain_problems)
        _check_name("--agents-namespace", namespace, label_problems)
        if shutil.which("kubectl") is None:
            raise InputError(
                "--node: there is no kubectl, which asks the cluster; on the node itself leave "
                "--node out"
            )
        kubectl = ("kubectl", *(("--context", context) if context else ()), "-n", namespace)
        selected = f"spec.nodeName={node},status.phase=Running"
        names = "jsonpath={.items[*].metadata.name}"
        words = (*kubectl, "get", "pods", "-l", _LABEL, "--field-selector", selected, "-o", names)
        _say(words, verbose=verbose)
        done = subprocess.run(  # noqa: S603 - the user's own kubectl, and no shell
            words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            rule = "get, list of pods"
            raise Refused(_why(done.stderr, f"{rule} in namespace {namespace}"))
        found = done.stdout.split()
        if not found:
            raise Refused(
                f"--node {node}: no agent runs there: namespace {namespace} has no pod with the "
                f"label {_LABEL} on it (kubectl get nodes; --agents-namespace)"
            )
        return cls(found[0], node, namespace, kubectl, verbose)

    def run_the_same(self, template: str = "", *, watches: bool = False) -> None:
        """Run the command that is being run, and end as it ends there.

        ``template``: that of a file of ``-o jsonpath-file``, which is not there.  ``watches``: it
        goes on until who reads it ends it.
        """
        words_here = words_of(click.get_current_context())
        given = (*_with_template(_without_own(words_here), template),)
        is_terminal = sys.stdout.isatty()
        screen = (f"COLUMNS={shutil.get_terminal_size((_COLUMNS, 24)).columns}", "FORCE_COLOR=1")
        # Who watches needs a terminal there, which Ctrl-C reaches.
        watches = watches and is_terminal and sys.stdin.isatty()
        words = (
            *(*self.kubectl, "exec", *(("-it",) if watches else ()), self.name, "-c", _CONTAINER),
            *("--", *(("env", *screen) if is_terminal else ()), *_PROGRAM, *given),
        )
        _say(words, verbose=self.verbose)
        sys.stdout.flush()
        errors = None if watches else subprocess.PIPE
        done = subprocess.run(words, stderr=errors, text=True, check=False)  # noqa: S603 - the same
        told = done.stderr or ""
        if done.returncode and _FORBIDDEN in told:
            raise Refused(
                _why(
                    told,
                    f"create of pods/exec in namespace {self.namespace}; mind that whoever has "
                    "it is root on every node with an agent",
                )
            )
        for line in told.splitlines():
            if not line.startswith((_ENDED, "Defaulted container ")):
                click.echo(line, err=True)
        if done.returncode:
            raise SystemExit(exit_status(done.returncode))


def _check_name(option: str, name: str, problems: Callable[[str], Iterable[str]]) -> None:
    """Refuse what kubectl would take for more than a name: another selector, an option."""
    for problem in problems(name):
        raise click.UsageError(f"{option}: {name!r}: {problem}")


def _without_own(words: Sequence[str]) -> Iterator[str]:
    """The words of the command without those that say where it is to be run."""
    waiting = iter(words)
    for word in waiting:
        if word == "--":
            yield word
            yield from waiting
        elif word in _OWN:
            next(waiting, None)
        elif word not in _OWN_FLAGS and not word.startswith(tuple(f"{one}=" for one in _OWN)):
            yield word


def _with_template(words: Iterable[str], template: str) -> Iterator[str]:
    """The words with a template itself where they name the file that it is in."""
    for word in words:
        option, form, _ = word.partition(_TEMPLATE_FILE)
        found = form and option in {"", "-o", "--output="}
        yield f"{option}jsonpath={template}" if found else word


def _why(told: str, rule: str) -> str:
    """What kubectl says, in one line; with the right that is missing, where it is one."""
    lines = [line for line in told.splitlines() if line.strip()]
    text = lines[-1].removeprefix("error: ") if lines else "it does not say why"
    lacking = f" (the rule that is missing: {rule})" if _FORBIDDEN in told else ""
    return f"kubectl: {text}{lacking}"


def _say(words: Sequence[str], *, verbose: bool) -> None:
    if verbose:
        click.echo(f"+ {shlex.join(words)}", err=True)
