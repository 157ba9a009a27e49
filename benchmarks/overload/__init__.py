"""What becomes of a mesh that is offered many times what it can serve: how much is served in
time, how long that takes, what it does to memory, and how soon it is over. Knows nothing of other
servers.
"""
