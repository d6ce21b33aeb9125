"""Keep objects on local disk in front of an origin; know nothing of HTTP servers."""
