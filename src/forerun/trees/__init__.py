"""Trees of guesses: which guess follows which, which tree to draft, and how siblings are drawn."""
