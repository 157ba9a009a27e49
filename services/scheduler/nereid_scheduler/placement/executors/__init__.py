"""Sessions of executors: what they have, what ends them, what becomes of their batches."""
