"""Reads what people run today: one file a format in `sources/`, all of them in `registry`."""
