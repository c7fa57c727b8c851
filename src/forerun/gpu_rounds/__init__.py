"""Whole rounds captured as CUDA graphs, and who executes them."""
