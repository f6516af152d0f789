"""Job files: a run written down, to be started by a word or by a clock.

A job is the flags of a run in TOML, by their own names. It knows nothing of how they are carried out.
"""
