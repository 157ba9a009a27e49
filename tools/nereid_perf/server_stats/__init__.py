"""What the server itself says of a measurement: its statistics, its metrics page, its GPUs."""
