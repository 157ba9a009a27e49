"""What each HTTP route does: the body of a call to a request of the mesh, its result to JSON."""
