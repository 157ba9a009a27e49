"""The Python backend runs model.py files with Triton's interface, one worker process per instance.

`supervisor` runs in the executor and supervises workers. `worker_site` runs in the worker process.
`direct` also runs in the worker process, if the worker serves its instance's stream itself.
"""
