"""`nereid serve`: plans the mesh, starts its processes and keeps them running.

The composition root. With nereid_mesh.check, whose rehearsal needs them, the only package that may
import several services.
"""
