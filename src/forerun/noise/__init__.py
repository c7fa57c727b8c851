"""Random numbers that are looked up by address, and the race that samples tokens with them."""
