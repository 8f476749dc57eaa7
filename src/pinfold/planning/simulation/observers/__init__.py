"""Who is told of the events of a run, and what he makes of them."""
