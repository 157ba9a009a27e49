"""Makes the requests of `nereid perf` from flags, mix files, traces and data files.

resolve_plan() completes an InputPlan with the server's metadata. Each worker process then makes its
own source of requests. The package does not deal with connections or schedules.
"""
