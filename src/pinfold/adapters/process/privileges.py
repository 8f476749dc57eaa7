"""Giving up rights, in the main process of a container and just before it executes its command.

Only a main process that has rights to give up imports this: ``ctypes`` takes some milliseconds and
a megabyte, which are gone with the execution, and the supervisor stays small.

Source: capabilities(7), prctl(2), credentials(7).
"""

import ctypes
import os

PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
WORD = 32


def take(order: bytes) -> None:
    """Become what was ordered; see :meth:`Privileges.take`."""
    Privileges(order).take()


class Privileges:
    """An order of ``credentials.py``: user, group, groups, capabilities, no new privileges."""

    def __init__(self, order: bytes) -> None:
        user, group, groups, dropped, no_new = order.split(b" ")
        self.user, self.group = (None if n == b"." else int(n) for n in (user, group))
        self.groups = None if groups == b"-" else numbers(groups)
        self.dropped = numbers(dropped)
        self.no_new = no_new == b"1"
        self.libc = ctypes.CDLL(None, use_errno=True)

    def take(self) -> None:
        """Become what was ordered.

        Raises:
            OSError: the kernel did not grant it; whoever asked must not go on.
        """
        if self.dropped:
            self.drop()
        if self.groups is not None:
            os.setgroups(self.groups)
        if self.group is not None:
            os.setresgid(self.group, self.group, self.group)
        if self.user is not None:
            # With it the kernel takes all capabilities from who is no longer root.
            os.setresuid(self.user, self.user, self.user)
        if self.no_new:
            self.prctl(PR_SET_NO_NEW_PRIVS, 1)

    def drop(self) -> None:
        """Take capabilities out of every set that an execution could give them back from."""
        for number in self.dropped:
            if self.libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) != 1:
                continue  # dropped already, or none of this kernel's
            try:
                self.prctl(PR_CAPBSET_DROP, number)
            except PermissionError:
                # Who has none and can gain none needs not be root to go without.
                if not self.no_new or self.permitted() & 1 << number:
                    raise
        self.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
        # The inheritable set would survive an execution by root.
        header, words = self.sets()
        for number in self.dropped:
            words[number // WORD * 3 + 2] &= ~(1 << number % WORD)
        self.check(self.libc.capset(header, words))

    def permitted(self) -> int:
        """The capabilities that this process can use, as a mask."""
        _, words = self.sets()
        return int(words[1]) | int(words[4]) << WORD

    def sets(self) -> "tuple[ctypes.Array[ctypes.c_uint32], ctypes.Array[ctypes.c_uint32]]":
        """The header of capget(2), and for each 32: effective, permitted, inheritable."""
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        words = (ctypes.c_uint32 * 6)()
        self.check(self.libc.capget(header, words))
        return header, words

    def prctl(self, option: int, value: int) -> None:
        """Make one call of the kernel's for what a process may."""
        unused = ctypes.c_ulong(0)
        self.check(self.libc.prctl(option, ctypes.c_ulong(value), unused, unused, unused))

    def check(self, answer: int) -> None:
        """Raise what a call has failed with."""
        if answer != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def numbers(text: bytes) -> "list[int]":
    """Numbers with commas between them; "." is none."""
    return [] if text == b"." else [int(number) for number in text.split(b",")]
