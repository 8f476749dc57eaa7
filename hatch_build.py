"""What is made when the package is built: wire definitions, manual pages, completion.

The wire definitions are compiled beside the adapters that speak them. Run by hand (``python
hatch_build.py``) after a change of a ``.proto`` file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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


def make_shipped(source: Path, folder: Path) -> dict[str, str]:
    """Have the command line write what a wheel has beside the modules.

    In a process of its own: the package that builds is not the one that is built.

    Returns:
        Each file, and its path in the folder.
    """
    subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-m", "pinfold.cli.shipped", str(folder)],
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): str(path.relative_to(folder)) for path in files}


class BuildHook(BuildHookInterface[Any]):
    """The step in which the wheel, editable too, gets what is made and not written."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make it before the files are collected; an editable wheel asks the sources instead."""
        source = Path(self.root) / "src"
        compile_wire_definitions(source)
        if self.target_name != "wheel" or version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="pinfold-shipped-")
        for path, place in make_shipped(source, Path(self._folder.name)).items():
            if place.startswith("share/"):
                build_data["shared_data"][path] = place
            else:
                build_data["force_include"][path] = f"pinfold/completion/{place}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clear up once the files are in the wheel."""
        del version, build_data, artifact_path
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()


if __name__ == "__main__":
    sys.exit(compile_wire_definitions(SOURCE))
