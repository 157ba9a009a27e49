"""Permissions of calls, and headers that become request parameters."""
