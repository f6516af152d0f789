"""Job files: a run written down, to be started by a word or by a clock.

A job is the flags of a run in TOML, by their own names. How they are carried out is not known here.
"""

from batchrun.jobs.files import Job, read_job

__all__ = ["Job", "read_job"]
