"""A trial of the agent from outside: faults by chance, and an observer that shares no code with it.

``make trial`` runs it.  Nothing here imports ``pinfold``: what is believed of the agent is read
from the kernel, from the agent's API as a client sees it, and from the marks in the trial's pods.
"""
