"""Executors as the scheduler sees them: sessions, instances, placement, routing, crash recovery."""
