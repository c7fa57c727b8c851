"""The ways to generate text from a model and prompts: `generate`, `stream` and `AsyncEngine`."""
