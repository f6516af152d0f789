"""What a run did: counted while it goes on, shown, and written down at its end.

It knows numbers and records; nothing of the model or of how the numbers came about.
"""
