"""Recordings of requests: reading the formats that people have, and making one from what a production leaves behind."""
