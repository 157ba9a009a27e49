"""The command `nereid timeline`, which explains what a mesh did in its last seconds.

joined.py joins all services' records, summary.py makes statements and tracks.py tracks of them.
Only command.py does I/O.
"""

# layout: pure
