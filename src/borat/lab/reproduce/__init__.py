"""The paper's tables and figures: read from a file, planned, run, checked against its claims and written down."""
