"""Decide what an S3 request means and how an answer is written; pure."""
