"""Models beyond memory: many models, memory for few of them, requests of a Zipf distribution.

trace.py has the requests and what the optimum would do (pure), models.py the models, clients.py the
clients, mesh.py the mesh and its figures.
"""
