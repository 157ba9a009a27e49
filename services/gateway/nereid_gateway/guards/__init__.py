"""Guards in front of the fronts: authentication, rights, restricted APIs."""
