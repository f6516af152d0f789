"""One run over several ranks: rank 0's run as ever, and those that follow it.

Every rank has an engine, and all engines take the same turns: rank 0 tells the others each prompt
that it is given, what ends the run, and the time. Their tokens are rank 0's.
"""
