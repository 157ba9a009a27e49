"""Reads traces of requests: each request's time of arrival, model, and inputs.

A trace is read one request at a time, and limits bound the memory.
"""
