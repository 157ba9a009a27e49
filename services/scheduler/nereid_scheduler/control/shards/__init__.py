"""Several schedulers in one mesh: who is a member, which models each owns, how models move."""
