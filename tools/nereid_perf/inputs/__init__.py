"""Inputs of `nereid perf`: plans (flags, a mix, a trace), tensors, and the requests made of them.

A command fills InputFlags, makes an InputPlan of them, has the server complete it (resolve_plan)
and hands it to each worker process, which makes its own source (make_source). The package is pure
except for reading files; only regions.py acts on the host. It knows no connection and no schedule.
"""
