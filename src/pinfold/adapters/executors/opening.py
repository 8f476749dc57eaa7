"""An executor by its name: ``processes``, ``dask``, or where Python finds it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Final

from msgspec import Struct

from pinfold.adapters.executors.local import local_pool, usable_cpus
from pinfold.adapters.executors.pool import ExecutorError, WorkerPool
from pinfold.formats.extras import install_command, missing_library

PROCESSES: Final = "processes"
DASK: Final = "dask"


class Choice(Struct, frozen=True):
    """Which executor.

    Attributes:
        name: ``processes``, ``dask``, or ``package.module:callable`` that returns one.
        workers: how many there shall be of them; None: one for each CPU that may be used.
        address: dask: that of its scheduler; None: a cluster on this machine.
        options: keyword arguments of the callable.
    """

    name: str = PROCESSES
    workers: int | None = None
    address: str | None = None
    options: Mapping[str, Any] = {}


def open_pool(choice: Choice, most: int) -> WorkerPool:
    """Have an executor; ``most``: so many calls there will be at once at most.

    Raises:
        ExecutorError: there is none, or an option does not go with it.
    """
    if choice.address is not None and choice.name != DASK:
        raise ExecutorError("an address of a scheduler is of the executor dask only")
    if choice.name in {PROCESSES, DASK}:
        if choice.options:
            raise ExecutorError(
                f"the executor {choice.name} has no options; they are those of a callable such as "
                "concurrent.futures:ThreadPoolExecutor"
            )
        workers = max(1, min(choice.workers or usable_cpus(), most))
        return local_pool(workers) if choice.name == PROCESSES else _dask(choice, workers)
    if choice.workers is not None:
        raise ExecutorError(
            f"how many workers {choice.name} has is one of its own options (such as max_workers=4)"
        )
    return WorkerPool(_imported(choice.name, choice.options))


def parse_option(text: str) -> tuple[str, Any]:
    """An option ``K=V``; V is JSON, or text where it is none.

    Raises:
        ExecutorError: it is no such text.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ExecutorError(f"{text!r}: an option is NAME=VALUE, such as max_workers=4")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def _dask(choice: Choice, workers: int) -> WorkerPool:
    try:
        from pinfold.adapters.executors.dask_cluster import dask_pool  # noqa: PLC0415 - 460 ms
    except ImportError as error:
        raise ExecutorError(
            f"the executor dask needs {missing_library(error)}: {install_command('dask')}"
        ) from None
    return dask_pool(choice.address, workers)


def _imported(name: str, options: Mapping[str, Any]) -> Executor:
    module, colon, attributes = name.partition(":")
    if not colon or not module or not attributes:
        raise ExecutorError(
            f"{name!r} is no executor; there are {PROCESSES}, {DASK}, and package.module:callable"
        )
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        executor = found(**options)
    except (Exception, SystemExit) as error:  # who ends the program is no executor, either
        raise ExecutorError(f"{name}: {type(error).__name__}: {error}") from error
    if not isinstance(executor, Executor):
        raise ExecutorError(
            f"{name} gives {type(executor).__name__}, which is no concurrent.futures.Executor"
        )
    return executor
