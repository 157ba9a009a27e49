"""The Python backend: model.py files with Triton's interface, one worker process per instance."""
