"""What owners lend: which CPUs may be, and that each is back before anything changes for its owner.

What is lent is in memory only, and a lease: the record says whose the CPUs are, and they stay his.
"""
