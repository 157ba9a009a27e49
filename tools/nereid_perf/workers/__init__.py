"""Processes that send requests, each with an event loop of its own, and their pipes to the parent.

generator.py sends what a schedule or the source says. The parent blocks; the messages between are
pickled, as both ends are one program.
"""
