"""adopt."""
