"""The table of routes: which scheduler names which model, by what the schedulers announce."""

# layout: covered, pure
