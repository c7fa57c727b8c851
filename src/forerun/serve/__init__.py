"""An HTTP server whose answers are those of `generate`: OpenAI's routes over one model.

    body -> route.read -> Ask -> Desk (keys, queue, engines) -> pieces -> route's reply -> client

A route knows OpenAI's words and no engine; the desk knows engines and no HTTP.
"""
