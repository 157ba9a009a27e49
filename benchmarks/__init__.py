"""Side-by-side measurements against what a user would pick instead of Nereid.

They know servers by their command lines and wire protocols only; nothing here imports Nereid's
code.
"""
