"""What loads and runs model files: Nereid's own backends, and the registry of all."""
