"""The Python backend: model.py files with Triton's interface, a worker process for each instance.

`supervisor` is the executor's side of a worker. `worker_site` runs in the worker process, and
`direct` as well if the worker serves its instance's stream itself.
"""
