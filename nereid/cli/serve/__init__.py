"""`nereid serve`: plans the mesh, starts its processes and keeps them running.

The composition root: the only package that may import several services.
"""
