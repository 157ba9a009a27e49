"""Counts the cost of a request, socket to socket: machine instructions, calls, bytecodes.

Unlike times, the counts are the same on a busy machine and on an idle machine.
"""
