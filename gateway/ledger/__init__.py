"""Prove, with a record kept elsewhere, that what was acknowledged is what is read."""
