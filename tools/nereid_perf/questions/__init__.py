"""What a user wants to know of a server, as generators: each yields the level of load that it wants
measured next, gets the measurement, and returns what it found. They know no clock and no client.
"""

# layout: covered, pure
