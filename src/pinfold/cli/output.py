"""What the commands share: options, errors, and how a document is printed or written."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from pinfold.cli.start.exit_statuses import REFUSED, USAGE
from pinfold.formats.extras import install_command, missing_library
from pinfold.linux import durable

F = TypeVar("F", bound=Callable[..., Any])

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class InputError(click.ClickException):
    """One clear line about input that cannot be used."""

    exit_code = USAGE.code


class Refused(click.ClickException):
    """One clear line about what was looked at and refused."""

    exit_code = REFUSED.code


@contextmanager
def input_errors(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Turn the declared errors of the layers below into one line and exit status 2.

    A disk that is full is nobody's input: where that is what they come of, the status is 1.
    """
    try:
        yield
    except kinds as error:
        kind = Refused if _comes_of_a_full_disk(error) else InputError
        text = _of_file(error) if isinstance(error, OSError) else str(error)
        raise kind(f"{prefix}{text}") from None


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Turn a library that is missing into one line that says how to install it.

    A module of our own that is missing is a fault of ours, and passes.

    Args:
        what: that needs it, such as ``a report``.
        extra: which has it, such as ``report``, or several with commas.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library, extras = missing_library(error), "extras" if "," in extra else "extra"
        raise InputError(
            f"{what} needs {library}; install pinfold with its {extras}: {install_command(extra)}"
        ) from None


def _of_file(error: OSError) -> str:
    """What the kernel says, without the number that no reader needs."""
    return error.strerror or str(error)


def _comes_of_a_full_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False


def machine_option(command: F) -> F:
    """The ``--machine`` option."""
    return click.option(
        "--machine",
        metavar="SRC",
        help="The machine: a capture (folder or tar), hwloc XML, MachineInfo JSON, lscpu -J, "
        "a topology document, or a short form such as 2s8c2t. Without it: this machine.",
    )(command)


def each_pod_option(command: F) -> F:
    """The ``--each-pod`` option."""
    return click.option(
        "--each-pod",
        is_flag=True,
        help="One row for each pod, even where many replicas are alike.",
    )(command)


def color_option(command: F) -> F:
    """The ``--color/--no-color`` option."""
    return click.option(
        "--color/--no-color",
        default=None,
        help="Colours, or none. Without it: colours on a terminal; NO_COLOR and FORCE_COLOR decide "
        "before that.",
    )(command)


def json_text(document: object) -> str:
    """A document as JSON for people and programs: a record, or what an agent has told."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def print_json(document: object) -> None:
    """Print a document as JSON."""
    print_text(json_text(document))


def print_text(text: str) -> None:
    """Print text that brings its own colours (or none)."""
    click.echo(text.removesuffix("\n"), color=True)


def write_whole(path: Path, text: str) -> None:
    """Have a file with all of a text, or as it was; what is no file, as a pipe, is written into.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        durable.replace(path, text.encode(), mode=None, sync=False)
