"""Questions on a server, as generators.

Each yields the level of load that it wants measured next, gets the measurement, and returns what it
found. They know no clock and no client.
"""

# layout: covered, pure
