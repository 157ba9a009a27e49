"""The mock server `nereid perf mock`: a KServe v2 server with set response times, for calibration."""
