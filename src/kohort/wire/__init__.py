"""The wire format: bytes to messages and back, without I/O or policy.

`discovery`, `coordinators`, `cluster_admin`, `groups`, `offsets`, `data`, `transactions`, `security`, `push` and
`journal` declare the messages, one class each. `schema` and `message` provide what a declaration uses. `codec` and
`message` compile one version's encoder and decoder when that version is first used. `framing` puts messages into
frames; `batch` and `records` write and read record batches.
"""
