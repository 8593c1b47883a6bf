"""The study file: reading it, checking it, and its types."""
