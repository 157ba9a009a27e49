"""Server that is measured: configurations loaded and restored, meshes started and ended."""
