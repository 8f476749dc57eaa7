"""One file for each command; what they share is in :mod:`pinfold.cli`."""
