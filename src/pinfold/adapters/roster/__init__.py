"""What runs without an agent: a list that commands of one user share."""

from pinfold.adapters.roster.file import Entry, Roster, RosterError

__all__ = ["Entry", "Roster", "RosterError"]
