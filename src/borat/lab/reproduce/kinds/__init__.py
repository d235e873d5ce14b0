"""Kinds of experiments: a module for each, named after the kind, with a subclass of Spec called KIND."""
