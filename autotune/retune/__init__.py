"""retune."""
