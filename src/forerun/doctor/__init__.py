"""Two texts differ: float arithmetic, or a bug?"""
