"""The Python backend: model.py files with Triton's interface, a worker process for each instance.

`supervisor` is the executor's side of a worker; `worker_site` is what the worker process runs;
`direct` is what runs there as well where the worker serves its instance's stream itself.
"""
