"""The commands `nereid run` and `nereid new`. Knows no service."""
