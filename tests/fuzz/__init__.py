"""A fuzzer of everything that strangers send: inputs of a kept corpus, changed at random, and what must hold then.

`corpus/` has the inputs, a file for each target, and `corpus.py` reads and changes them. `parsers.py` gives them to
decoders and logins in this process. `strangers.py` sends them to a secured broker. `run.py` puts all together:
`make fuzz MINUTES=60`. The listener without security has a fuzzer of its own: `tests/broker/fuzz`.
"""
