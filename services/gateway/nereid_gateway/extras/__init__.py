"""Ports and pages beside KServe v2: managed endpoints, console, metrics."""
