"""How far to draft: what was measured, which guesses pay, and what a round asks for."""
