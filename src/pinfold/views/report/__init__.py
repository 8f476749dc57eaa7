"""From the results of a simulation to the report that is drawn of them."""
