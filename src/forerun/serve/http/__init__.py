"""HTTP: bodies in, answers and events out, and the life of the server."""
