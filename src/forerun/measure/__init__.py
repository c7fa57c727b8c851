"""Measuring: what passes cost, how often drafts survive, sweeps, and the figures made of them."""
