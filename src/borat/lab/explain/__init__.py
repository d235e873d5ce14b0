"""The method explained: an interactive page, the paper's illustrations, and its theorems beside measurements."""
