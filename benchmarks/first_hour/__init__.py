"""What a first hour takes, beside other servers: files, lines, names to know, and seconds."""
