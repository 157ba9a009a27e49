"""Pages about the scheduler: metrics, statistics, facts, settings of traces and logs."""
