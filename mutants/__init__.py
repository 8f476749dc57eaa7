"""Mutation testing: small changes to a copy of the code, which the tests have to notice."""
