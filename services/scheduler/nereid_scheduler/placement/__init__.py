"""Model versions on executors: the catalogue, executors' sessions, and loads."""
