"""Finds in a launch configuration what commonly costs speed or breaks; every rule is a row of `rules.toml`."""
