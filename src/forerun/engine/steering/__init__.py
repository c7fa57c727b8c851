"""Decides how far to draft: measures rounds, and chooses the guesses that save more than they
cost."""
