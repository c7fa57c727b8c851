"""The engine: answers requests in rounds that draft, score, decide and commit."""
