"""The command `nereid serve`: it plans the mesh, starts its processes and keeps them running.

This package is the composition root. Only this one and nereid_mesh.check, whose rehearsal needs
them, may import several services.
"""
