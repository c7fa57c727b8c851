"""Sampling options, and how they turn logits into the distribution (law) that is sampled."""
