"""Past one process: models spread over ranks."""
