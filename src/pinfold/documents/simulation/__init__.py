"""The two documents of a simulation: the experiment, and its results."""
