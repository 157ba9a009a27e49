"""Ports and pages in addition to KServe v2: managed endpoints, the console, metrics."""
