"""The server that is measured: loads and restores configurations, starts and ends meshes."""
