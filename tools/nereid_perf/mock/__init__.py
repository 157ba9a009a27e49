"""The mock server `nereid perf mock`: a KServe v2 server with set response times, for calibration.

service_times.py computes when each response is due, and does no I/O. The other modules implement
HTTP and gRPC.
"""
