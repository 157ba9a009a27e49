"""`nereid adopt`: a proxy before another server, which moves its traffic to a mesh step by step."""
