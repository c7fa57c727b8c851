"""Sampling options, and the law they make of logits."""
