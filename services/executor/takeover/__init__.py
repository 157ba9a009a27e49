"""What outlives a session with a scheduler: models' instances, and who may have them next."""
