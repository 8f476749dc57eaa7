"""A trial of the agent from outside: faults by chance, and an observer that shares no code with it.

``make trial`` runs it.  Nothing here imports ``pinfold``, but for :mod:`trial.warm`, which is the
agent: what is believed of it is read from the kernel, from its API as a client sees it, from the
marks in the trial's pods, and from what these are told.
"""
