"""`nereid timeline`: what a mesh did in the last seconds, request by request and batch by batch.

joined.py puts together what services recorded; summary.py says what it means; tracks.py lays it
out, and perfetto.py and chrome.py write that down. All of these are pure; command.py asks.
"""

# layout: pure
