"""The server's own figures during a measurement: statistics, metrics page, and GPUs."""
