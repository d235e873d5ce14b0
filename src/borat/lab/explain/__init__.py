"""Explanations of the method: an interactive page, and illustrations."""
