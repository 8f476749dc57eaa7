"""An experiment as it was written, read and checked: the runs that it asks for, as values."""
