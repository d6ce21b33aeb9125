"""Speak S3 to clients; know nothing of disks."""
