"""The Python backend runs model.py files with Triton's interface, one worker process per instance.

`supervisor` runs in the executor, `worker_site` in the worker. `direct` runs in workers that serve
their instance's stream themselves.
"""
