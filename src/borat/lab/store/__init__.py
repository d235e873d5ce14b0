"""Storage of runs: a folder for each, written whole or not at all, and read as a table."""
