"""What can be written after `forerun`: the flags of each command, and what help says about them.

Nothing here imports an engine, so that help and mistakes are answered at once.
"""
