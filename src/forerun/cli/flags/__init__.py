"""The flags of all commands and their help texts.

Nothing here imports an engine, so that help and errors appear at once.
"""
