"""The command `nereid serve`, which plans the mesh, starts its processes and keeps them running.

This package is the composition root. Apart from it, only nereid_mesh.check may import several
services, because its rehearsal needs them.
"""
