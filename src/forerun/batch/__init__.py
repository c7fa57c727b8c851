"""Answers a file of requests on this machine, into a folder; can be resumed."""
