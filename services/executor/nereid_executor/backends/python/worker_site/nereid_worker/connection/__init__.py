"""The worker's connection to its executor, and the memory that the two processes share."""
