"""What `nereid perf` leaves behind: text, CSV, JSON, a page, a picture. Measures nothing."""
