"""Traces as the gateway sees them: sampling, spans, and Triton's trace files."""
