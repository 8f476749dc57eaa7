"""What failed is tried again: how long to wait before, and the work that goes on for ever."""
