"""The program: ``pinfold``, and ``python -m pinfold``."""

from __future__ import annotations

from importlib import import_module

from pinfold.linux.endings import end_at_once


def start() -> None:
    """Run the command line; also what is loaded for it can be interrupted, without a traceback."""
    end_at_once()
    import_module("pinfold.cli").main(prog_name="pinfold")


if __name__ == "__main__":
    start()
