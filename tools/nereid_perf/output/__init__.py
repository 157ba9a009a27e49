"""Output of `nereid perf`: text, CSV, JSON, a page, a picture. Measures nothing."""
