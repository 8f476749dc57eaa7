"""Tests of the documents that Pinfold prints and serves."""
