"""Counter-based random numbers, addressed by their purpose, and the race that chooses tokens."""
