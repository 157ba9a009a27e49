"""HTTP/1.1 (RFC 9112): the port, its connections, and one call on a connection.

Knows nothing of KServe, models, tensors or routes: what differs is handed in by the front.
"""
