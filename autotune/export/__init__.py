"""Writes what a study found as files that start it: one file a format, all of them in `registry`."""
