"""The token of the page: a file that only its user can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from pinfold.linux import durable
from pinfold.linux.folders import Purpose, check_path, make_folder
from pinfold.ports.errors import PortError

BYTES: Final = 32
"""Of chance in a token that is made here."""

SHORTEST: Final = 32
"""Characters of one that somebody else has made: 24 bytes of chance, in base64."""

LONGEST: Final = 1024

_ELSEWHERE: Final = "give another --token-file"
_PURPOSE: Final = Purpose("the token of the page", _ELSEWHERE)

_Seen = tuple[int, int, int, int]


class TokenFile:
    """The token as its file has it now: a Secret that is changed is another token from then on.

    Args:
        path: the file.
        makes: whether it is made when it is missing.
    """

    def __init__(self, path: Path, *, makes: bool) -> None:
        self.path = path
        self._makes = makes
        self._read: tuple[_Seen, str] | None = None

    def prepare(self) -> None:
        """Make it, where it is missing and is ours to make.

        Raises:
            PortError: it cannot be made, or others could read or replace it.
        """
        if not self._makes:
            return
        try:
            make_folder(self.path.parent, _PURPOSE)
            made = secrets.token_urlsafe(BYTES) + "\n"
            durable.create(self.path, made.encode(), sync=False)
        except FileExistsError:
            pass
        except OSError as error:
            raise self._unusable(error) from None
        self.token()

    def token(self) -> str:
        """The token.

        Raises:
            PortError: there is none, it is too short, or others could read or replace it.
        """
        try:
            check_path(self.path, _PURPOSE)
            # A pipe that nobody writes to is no file either, and is not waited for.
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                found = os.fstat(file.fileno())
                self._check(found)
                seen = (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size)
                if self._read is None or self._read[0] != seen:
                    self._read = seen, self._understood(file.read(LONGEST + 2))
        except FileNotFoundError:
            raise PortError(
                f"{self.path}: there is no token of the page",
                "start pinfold serve again, which makes one"
                if self._makes
                else "make a file of mode 0600, or the Secret that it is of",
            ) from None
        except OSError as error:
            raise self._unusable(error) from None
        return self._read[1]

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise PortError(f"{self.path}: is no file", _ELSEWHERE)
        if found.st_uid not in (0, os.geteuid()):
            raise PortError(
                f"{self.path}: belongs to user {found.st_uid}, who would have the token", _ELSEWHERE
            )
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PortError(
                f"{self.path}: others may read the token (mode {stat.S_IMODE(found.st_mode):04o})",
                f"chmod 0600 {self.path}; of a Secret, set defaultMode: 0400",
            )

    def _understood(self, content: bytes) -> str:
        token = content.decode("ascii", errors="replace").strip()
        if not SHORTEST <= len(token) <= LONGEST or not all("!" <= one <= "~" for one in token):
            raise PortError(
                f"{self.path}: a token has {SHORTEST} to {LONGEST} letters, digits and signs, and "
                "no spaces",
                f"make one with: openssl rand -base64 {BYTES}",
            )
        return token

    def _unusable(self, error: OSError) -> PortError:
        return PortError(f"{self.path}: {error.strerror or error}", _ELSEWHERE)
