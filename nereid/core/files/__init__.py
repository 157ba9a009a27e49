"""Files and directories: what may be read, at which pace, and what is removed at exit."""
