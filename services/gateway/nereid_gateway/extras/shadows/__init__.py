"""Copies of requests for models' shadows: sent after the response, and compared in a process."""

# layout: not covered, processes in end-to-end tests reach it
