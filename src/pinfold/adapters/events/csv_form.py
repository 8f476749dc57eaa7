"""Events in CSV (RFC 4180, lines that end with a line feed): a header, then a line an event."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any, BinaryIO

from pinfold.ports.events import RunEvent


def writer(file: BinaryIO) -> Any:  # noqa: ANN401 - csv's own has no public type
    """What writes lines into a part, which has no header."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
    return csv.writer(text, lineterminator="\n"), text


def write(writer: Any, events: list[RunEvent]) -> None:  # noqa: ANN401 - the same
    """Write some events; what there is none of is empty."""
    lines, text = writer
    lines.writerows(events)
    text.flush()


def close(writer: Any) -> None:  # noqa: ANN401 - the same
    """Leave the file open for whoever opened it."""
    writer[1].detach()


def put_together(parts: list[Path], file: BinaryIO) -> None:
    """The header, then the parts as they are."""
    file.write(f"{','.join(RunEvent._fields)}\n".encode())
    for part in parts:
        with part.open("rb") as lines:
            shutil.copyfileobj(lines, file)
