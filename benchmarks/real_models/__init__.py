"""Real models beside a native Triton and a loop without a server (docs: benchmarks/README.md)."""
