"""The worker's connection to its executor, and the memory that they share."""
