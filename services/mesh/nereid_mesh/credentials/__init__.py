"""Commands that make credentials, for clients and for members of the mesh."""
