"""From a model, prompts and options to answers: `generate`, `stream` and `AsyncEngine`."""
