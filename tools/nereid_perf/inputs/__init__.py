"""Makes the requests of `nereid perf` from flags, mix files, traces and data files.

resolve_plan() completes an InputPlan with metadata; each worker process makes requests from it.
"""
