"""The engine: rounds over a batch of slots."""
