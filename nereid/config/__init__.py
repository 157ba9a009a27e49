"""Settings from flags, environment variables and TLS files. No other module reads argv."""
