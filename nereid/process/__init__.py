"""Process of a service: start, standby, liveness, inherited ports, exit."""
