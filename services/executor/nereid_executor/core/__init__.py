"""Basic concepts of the executor: devices, memory, cores, recent runs, model files."""
