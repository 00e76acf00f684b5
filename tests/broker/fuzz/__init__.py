"""A fuzzer of the listener: everything that can be sent to a broker, and what must hold whatever is sent.

`making` makes the bytes of a case from its seed, and `cases` sends them. `honest` has the clients that must notice
nothing. `watch` looks at the broker's process and log. `run` puts all together: `make fuzz-listener MINUTES=10`.
"""
