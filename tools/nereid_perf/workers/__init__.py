"""Worker processes, which send the requests, and their communication with the parent process.

The parent's calls block. Messages are pickled, because both ends are the same program.
"""
