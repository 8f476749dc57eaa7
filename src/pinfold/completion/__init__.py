"""What a shell asks at each TAB: the words that may come next, from a table, and from the agent.

Nothing of the command line is imported: an answer has to be there before it is waited for.
"""
