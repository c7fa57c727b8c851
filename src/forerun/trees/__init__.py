"""Trees of guesses: their shape, the choice of the best tree, and the laws of siblings."""
