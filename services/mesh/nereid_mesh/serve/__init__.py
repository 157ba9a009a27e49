"""The command `nereid serve`, which plans the mesh, starts its processes and keeps them running."""
