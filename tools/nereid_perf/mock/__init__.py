"""Mock server `nereid perf mock`: a KServe v2 server that takes a set time, for calibration.

service_times.py, which is pure, says when each response is due; the rest speaks HTTP and gRPC.
"""
