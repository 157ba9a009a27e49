"""Server's own figures on a measurement: its statistics, its metrics page, its GPUs."""
