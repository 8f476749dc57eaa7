"""Fuzzing of every parser: ``python -m fuzz [TARGET...] --seconds N --corpus DIR``.

A failure is an exception that the parser does not declare, a property that does not hold, or a
time limit passed.  Its input is saved; as a file in ``tests/data/regressions/TARGET`` it becomes a
test.
"""
