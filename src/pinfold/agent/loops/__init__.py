"""What goes on beside an agent's API, for ever: its period, what it follows and decides."""
