"""The broker: sockets, dispatch, shards. Only `kohort.cli`, `kohort.testing` and `kohort.Broker` import it."""
