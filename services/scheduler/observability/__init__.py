"""The scheduler's metrics, statistics and traces, and the settings that clients may change."""
