"""State that outlives a scheduler: which models and settings clients have changed, and how."""
