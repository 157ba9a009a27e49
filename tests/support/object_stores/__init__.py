"""Object stores for tests: one in this process that fails on demand, and servers of real kinds."""
