"""Damage to what an agent has on the disk, done while it is dead."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

CONTAINER_FILES: Final = ("spec.json", "state", "started", "exit.new", "go")


def hurt(file: Path, rng: random.Random) -> str:
    """Do something to a file; what was done."""
    how = rng.choice(["remove", "empty", "cut", "flip", "flip", "folder"])
    if how == "remove" or not file.is_file():
        file.unlink(missing_ok=True)
        return f"{file.name} removed"
    data = file.read_bytes()
    if how == "folder":
        file.unlink()
        file.mkdir()
        return f"{file.name} made a folder"
    if how == "empty" or not data:
        file.write_bytes(b"")
        return f"{file.name} emptied"
    if how == "cut":
        file.write_bytes(data[: rng.randrange(len(data))])
        return f"{file.name} cut"
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    file.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
    return f"{file.name}: bit {bit} of byte {at} flipped"


def flip_many(file: Path, rng: random.Random, number: int) -> str:
    """Flip bits all over a file; what was done."""
    data = bytearray(file.read_bytes())
    if not data:
        return f"{file.name} is empty"
    for _ in range(number):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"{number} bits of {file.name} flipped ({len(data)} bytes)"


def copied(folder: Path, to: Path) -> None:
    """Keep a copy of the files of a folder, not of those below."""
    to.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy2(file, to / file.name)


def put_back(kept: Path, folder: Path) -> None:
    """Have the files of a folder as they were kept."""
    for file in list(folder.iterdir()):
        if file.is_file():
            file.unlink()
    for file in kept.iterdir():
        shutil.copy2(file, folder / file.name)
    shutil.rmtree(kept)
