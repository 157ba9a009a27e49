"""Model repositories on disk, and the model control extension over them."""
