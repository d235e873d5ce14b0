"""The method explained: an interactive page, and the paper's illustrations."""
