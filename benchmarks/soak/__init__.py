"""Memory over a long mixed load: which process grows, and by how much for each request."""
