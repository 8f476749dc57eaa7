"""The command line: parse, call, print; one file for each command."""
