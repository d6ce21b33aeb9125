"""Carry out S3 operations on a storage engine: (context, request) -> response."""
