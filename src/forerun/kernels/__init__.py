"""Triton twins of the acceptance rules.  They judge a trial and need no engine."""
