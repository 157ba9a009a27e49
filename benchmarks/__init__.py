"""Measurements of Nereid side by side with servers that a user could choose instead.

The benchmarks use servers only through command lines and wire protocols. They do not import
Nereid's code.
"""
