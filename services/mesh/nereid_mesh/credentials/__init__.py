"""Commands that make the credentials of clients and of members of the mesh."""
