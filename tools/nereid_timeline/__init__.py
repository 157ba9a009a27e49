"""The command `nereid timeline`, which explains a mesh's last seconds; only command.py does I/O."""

# layout: pure
