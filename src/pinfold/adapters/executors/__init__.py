"""Those who carry out what can be done beside one another: executors of ``concurrent.futures``."""
