"""Links of gateways: a request's way from its frame to a queue."""
