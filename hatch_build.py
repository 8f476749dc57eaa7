"""Compiles the wire definitions beside the adapters that speak them, when the package is built.

Run by hand (``python hatch_build.py``) after a change of a ``.proto`` file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).resolve().parent / "src"


def compile_wire_definitions(source: Path) -> None:
    """Write ``NAME_pb2.py`` and its types beside each ``NAME.proto``.

    Raises:
        RuntimeError: a definition has an error; protoc has said which.
    """
    from grpc_tools import protoc  # noqa: PLC0415 - only a build needs it

    # Below the package: the paths in the compiled modules are then import paths.
    names = [str(path.relative_to(source)) for path in sorted(source.rglob("*.proto"))]
    arguments = ["protoc", f"-I{source}", f"--python_out={source}", f"--pyi_out={source}"]
    if names and protoc.main([*arguments, *names]) != 0:
        raise RuntimeError(f"protoc refused one of {', '.join(names)}")


class WireDefinitions(BuildHookInterface[Any]):
    """The step in which the wheel, editable too, gets its compiled definitions."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected."""
        del version, build_data
        compile_wire_definitions(Path(self.root) / "src")


if __name__ == "__main__":
    sys.exit(compile_wire_definitions(SOURCE))
