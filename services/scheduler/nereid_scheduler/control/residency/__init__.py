"""Models beyond memory: decides which models on demand are in memory, and on which executors."""
