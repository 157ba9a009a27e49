"""The command `nereid timeline`, which explains what a mesh did in its last seconds.

joined.py joins the records of all services by request and by batch. summary.py turns the joined
timeline into statements. tracks.py lays it out in tracks, and perfetto.py and chrome.py write the
tracks to trace files. These modules do no I/O. command.py asks the mesh for the records.
"""

# layout: pure
