"""The program: ``pinfold``, and ``python -m pinfold``."""

from __future__ import annotations

import sys
from importlib import import_module

from pinfold.linux.endings import end_at_once


def start(name: str = "pinfold") -> None:
    """Run the command line; also what is loaded for it can be interrupted, without a traceback.

    ``name``: how its usage calls it.
    """
    end_at_once()
    if sys.argv[1:] and sys.argv[1].startswith("__complete"):
        # Between two keys there is no time to load the command line.
        shell = import_module("pinfold.completion.program")
        text = shell.answer_of(
            sys.argv[1:], lambda: import_module("pinfold.cli.completion_table").table()
        )
        try:
            shell.write(text)
        except OSError as error:
            import_module("pinfold.cli.start.streams").end_unwritten(error)
        return
    import_module("pinfold.cli").main(prog_name=name)


def start_of_kubectl() -> None:
    """Run it as kubectl runs a plugin: ``kubectl pinfold``."""
    start("kubectl pinfold")


def complete_of_kubectl() -> None:
    """Answer kubectl's question for what completes the words after ``kubectl pinfold``."""
    sys.argv.insert(1, "__complete")
    start()


if __name__ == "__main__":
    start()
