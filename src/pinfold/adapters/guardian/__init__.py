"""The guardian: a process that undoes what is lent when the agent does not renew its lease."""

from pinfold.adapters.guardian.guardian import GuardianProcess

__all__ = ["GuardianProcess"]
