"""The executor: owns devices, loads model instances on them, runs batches for the scheduler."""
