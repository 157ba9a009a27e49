"""Several schedulers in one mesh: the members, the models that each owns, and how models move."""
