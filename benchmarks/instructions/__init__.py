"""Cost of a request from socket to socket, counted: machine instructions, calls, bytecodes.

Counts are the same on a busy machine and on an idle one, where times are not.
"""
