"""Shared memory that Nereid owns, between the processes of one host."""
