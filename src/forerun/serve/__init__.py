"""An HTTP server with OpenAI's routes, whose answers are those of `generate`.

    body -> route.read -> Ask -> Desk (keys, queue, engines) -> pieces -> route's reply -> client

A route knows OpenAI's formats but no engines; the desk knows engines but no HTTP.
"""
