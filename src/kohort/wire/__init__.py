"""Bytes to messages and back: no I/O, no policy.

`cluster`, `operations`, `groups`, `offsets`, `data`, `transactions`, `security` and `journal` declare the messages, one
class each; `schema` and `message` are what they are declared with; `encoder` and `decoder` compile one version's codec
when it is first used; `framing` puts messages into frames; `batch` reads and writes record batches.
"""
