"""Checks the GPU data path against the CPU, and times it with each part on and off."""
