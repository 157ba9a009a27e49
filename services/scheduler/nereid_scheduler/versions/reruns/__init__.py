"""Requests that a gateway sends again, and the executions of their first runs at executors."""
