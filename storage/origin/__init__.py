"""Ask the origin, politely: signing, wire format, rate limits, retries."""
