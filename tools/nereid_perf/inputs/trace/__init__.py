"""Reads traces of requests one request at a time; limits bound the memory."""
