"""Tracing in the gateway: sampling, spans, and Triton's trace files."""
