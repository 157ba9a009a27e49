"""Guards, which check calls before the fronts see them: authentication, rights, restricted APIs."""
