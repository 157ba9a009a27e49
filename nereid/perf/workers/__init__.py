"""Processes that send requests, each with an event loop of its own, and their pipes to the parent.

The parent blocks; the messages between are pickled, as both ends are one program.
"""
