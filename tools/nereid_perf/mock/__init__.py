"""The mock server `nereid perf mock`: KServe v2 with set response times, for calibration."""
