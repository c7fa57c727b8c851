"""Loads models by name, folder or file, and chooses the fastest pass that fits each."""
