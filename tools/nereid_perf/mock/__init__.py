"""`nereid perf mock`: a KServe v2 server that takes a set time, to calibrate a load tool with.

service_times.py, pure, says when each response is due; the rest speaks HTTP and gRPC.
"""
