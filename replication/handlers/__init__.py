"""What a broker answers: one function or method per API, `(context, body) -> response or an awaitable of one`."""
