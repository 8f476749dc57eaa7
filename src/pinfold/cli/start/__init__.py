"""How any command begins and ends: the program around it, its streams, its exit status."""
