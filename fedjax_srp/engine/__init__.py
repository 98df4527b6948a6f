"""The engine: compiled rounds, and what runs them."""
