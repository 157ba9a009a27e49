"""Makes the requests of `nereid perf` from flags, mix files, traces and data files.

A command fills InputFlags and makes an InputPlan from them. resolve_plan() completes the plan with
the server's metadata. The command hands the plan to each worker process, which makes its own source
of requests (make_source). Except for reading files, the package does no I/O; only regions.py
changes the host (shared memory). The package does not deal with connections or schedules.
"""
