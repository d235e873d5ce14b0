"""Storage of runs: a folder for each, written atomically, and read as a table."""
