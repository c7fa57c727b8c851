"""Rounds that are captured whole as CUDA graphs, and the executors that run them."""
