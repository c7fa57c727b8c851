"""Explains why two texts that should be equal differ: float arithmetic, or a bug."""
