"""The command `nereid timeline`: the last seconds of a mesh, by request and by batch.

joined.py puts together what services recorded; summary.py says what it means; tracks.py lays it
out, and perfetto.py and chrome.py write that down. All of these are pure; command.py asks the mesh.
"""

# layout: pure
