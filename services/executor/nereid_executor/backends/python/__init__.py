"""The Python backend runs model.py files with Triton's interface, one worker process per instance."""
