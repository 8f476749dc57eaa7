"""Events in Parquet: a column each, with types; null where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyarrow import parquet

from pinfold.ports.events import RunEvent

_TYPES: Final = {
    "seed": pa.int64(),
    "at_seconds": pa.float64(),
    "pod": pa.int64(),
    "attempt": pa.int32(),
    "cpus": pa.float64(),
}
SCHEMA: Final = pa.schema(
    [
        pa.field(name, _TYPES.get(name, pa.string()), nullable=name in {"attempt", "node"})
        for name in RunEvent._fields
    ]
)


def writer(file: BinaryIO) -> Any:  # noqa: ANN401 - pyarrow has no types
    """What writes groups of rows into a part, a Parquet file of its own."""
    return parquet.ParquetWriter(file, SCHEMA, compression="zstd")


def write(writer: Any, events: list[RunEvent]) -> None:  # noqa: ANN401 - the same
    """Write some events as one group of rows."""
    if events:
        columns = zip(*events, strict=True)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
        ]
        writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))


def close(writer: Any) -> None:  # noqa: ANN401 - the same
    """Write the end of the file."""
    writer.close()


def put_together(parts: list[Path], file: BinaryIO) -> None:
    """One group of rows after the other, of which one is in memory."""
    with parquet.ParquetWriter(file, SCHEMA, compression="zstd") as whole:
        for part in parts:
            rows = parquet.ParquetFile(part)
            for group in range(rows.num_row_groups):
                whole.write_table(rows.read_row_group(group))
