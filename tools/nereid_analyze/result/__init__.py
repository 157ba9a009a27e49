"""What was found, and how it is shown and applied."""
