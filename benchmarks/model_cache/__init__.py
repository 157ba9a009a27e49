"""More models than fit into memory, with requests for them by a Zipf distribution.

trace.py computes the requests and the optimal hits. models.py has the models, clients.py the
clients, and mesh.py the mesh and its figures.
"""
