"""The interactive page that explains an update."""
