"""When requests are sent: schedules and verdicts are pure; generator.py acts by them."""
