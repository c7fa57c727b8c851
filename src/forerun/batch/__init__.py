"""A file of requests, answered on this machine into a folder that can be resumed."""
