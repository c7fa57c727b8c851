"""Small servers with known faults, in this process: what an audit is tried out on.

They speak a language of a few words whose law is known, with a real speculative loop made of
forerun's rules, of `forerun.proof`'s mutants, or of bugs that other servers have had.
"""
