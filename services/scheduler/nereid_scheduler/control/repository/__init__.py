"""The model repository: scans of directories and of object stores."""
