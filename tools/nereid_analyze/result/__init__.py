"""The result of a search, and how it is shown and applied."""
