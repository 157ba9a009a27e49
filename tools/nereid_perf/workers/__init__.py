"""Worker processes, which send the requests, and their communication with the parent process.

Each worker runs its own event loop. generator.py sends requests as a schedule or the source says.
The parent's calls block. Messages between parent and workers are pickled, because both ends are the
same program.
"""
