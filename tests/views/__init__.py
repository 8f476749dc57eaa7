"""Tests of what the pictures, the texts and the pages are made of."""
