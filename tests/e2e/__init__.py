"""Tests of the built wheel, apart from the others because they build and install."""
