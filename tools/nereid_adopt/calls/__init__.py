"""Calls of clients: their kinds, their sequences and regions, and which server gets them. Pure."""

# layout: covered
