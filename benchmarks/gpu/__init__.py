"""GPU data path, checked against the CPU and timed with each of its parts on and off."""
