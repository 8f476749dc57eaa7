"""Files that are whole or not there, as a supervisor writes them; it imports next to nothing."""

import os
from binascii import crc32


def with_sum(text: bytes) -> bytes:
    """Lines with the checksum of :mod:`pinfold.adapters.process.records`."""
    return b"%ssum %08x\nend\n" % (text, crc32(text))


def write_file(folder: bytes, name: bytes, text: bytes) -> None:
    """Make a file that is complete or not there, and on the disk when this returns.

    ``NAME.new`` may be there: it is overwritten in place, so that the room it has is not lost.
    """
    path = folder + b"/" + name
    # Whatever lies there, this does not wait.
    file = os.open(path + b".new", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.write(file, text) < len(text):
            raise OSError(None, "no room on the disk")
        os.ftruncate(file, len(text))
        os.fsync(file)
        os.rename(path + b".new", path)  # noqa: PTH104 - pathlib is big
        os.fsync(directory)
    finally:
        os.close(file)
        os.close(directory)
