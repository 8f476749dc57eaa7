"""Sockets that are files, for all who serve at one."""
