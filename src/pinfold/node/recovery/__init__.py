"""From the record to a node that goes on where the last agent left off."""
