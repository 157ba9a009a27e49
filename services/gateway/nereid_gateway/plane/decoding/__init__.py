"""Decoding and encoding that would take too long in one turn of the event loop.

orjson and NumPy hold the interpreter's lock, so a thread would not help.
"""
