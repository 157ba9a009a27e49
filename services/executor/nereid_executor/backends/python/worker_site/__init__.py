"""The directory on a worker's sys.path. Its modules need only numpy and Python 3.9."""
