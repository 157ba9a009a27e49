"""Files and directories: safe and paced reads, and temporary directories removed at exit."""
