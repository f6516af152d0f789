"""One run on many workers, which Ray starts, feeds and replaces.

    input -> chunks of rows (Ray Data's reader) -> a Worker on each device -> the run's own books

Each worker is the same engine, plan and prefix store as on one machine. Journal, output and report
are those of any run and stay with the process that was started: what a worker loses it does again.
The only room that imports Ray. Nothing is imported here: each process takes what it needs.
"""
