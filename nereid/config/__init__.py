"""Settings from flags, environment variables and TLS files. Only this package reads argv."""
