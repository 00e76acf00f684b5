"""The client: one core without I/O, driven by a thread, by asyncio or by the simulation.

`net` has the connections, the metadata cache and the coordinators; its drivers own sockets and clock. `group` is the
membership in a group. `consumer` prefetches, shares records out fairly and commits in order. `producer` batches and
sends. `admin` describes and changes the cluster. A facade (`consumer.consumer`, `consumer.async_consumer`,
`consumer.range_reader`, `group.member`, `producer.producer`, `admin.admin`) runs coroutines of the core on a driver.
"""
