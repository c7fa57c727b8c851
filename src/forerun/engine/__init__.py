"""The engine: rounds over a batch of rows."""
