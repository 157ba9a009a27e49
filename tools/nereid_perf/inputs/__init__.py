"""What `nereid perf` sends: plans (flags, a mix, a trace), tensors, and the requests made of them.

A command fills InputFlags, makes an InputPlan of them, has the server complete it (resolve_plan)
and hands it to each worker process, which makes its own source (make_source). Pure but for reading
files; regions.py alone acts on the host. Knows no connection and no schedule.
"""
