"""The program of a decoder process."""
