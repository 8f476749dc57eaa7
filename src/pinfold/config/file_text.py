"""The files that settings are read from: small, regular texts, whatever they hold."""

from __future__ import annotations

from pathlib import Path

from pinfold.config.values import ConfigError


class UnreadableError(ConfigError):
    """The file is not there, or cannot be read."""


def file_bytes(path: str, most: int, what: str) -> bytes:
    """The content of a file.

    Args:
        path: which.
        most: how many bytes it may have.
        what: what it should be, for the error about one that is larger: ``a profile``.

    Raises:
        UnreadableError: it cannot be read.
        ConfigError: it is larger, or no file can have such a name.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise UnreadableError(f"{error.strerror or error}", path) from None
    except ValueError:
        raise ConfigError(f"{path!r}: no name that a file can have") from None
    if len(raw) > most:
        raise ConfigError(f"larger than {most // 2**20} MiB; is it {what}?", path)
    return raw


def file_text(path: str, most: int, what: str) -> str:
    """The same as text; raises ConfigError where it is none, too."""
    return decoded(file_bytes(path, most, what), path, what)


def decoded(raw: bytes, path: str, what: str) -> str:
    """The content of a file as text; raises ConfigError where it is none."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"not UTF-8 text; is it {what}?", path) from None
