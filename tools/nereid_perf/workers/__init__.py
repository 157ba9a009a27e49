"""Worker processes, which send the requests; messages are pickled, as both ends are one program."""
