"""What a simulation counted, as text."""
