"""The client: one core without I/O, driven by a thread, by asyncio or by the simulation.

`net` turns bytes into answers, knows leaders and coordinators and has the one way to send; its drivers own sockets and
clock. `group` keeps a place in a group. `consumer` reads ahead, deals out fairly and commits in order; `producer`
gathers and sends; `admin` asks and changes. A face (`consumer.consumer`, `consumer.async_consumer`,
`consumer.range_reader`, `group.member`, `producer.producer`, `admin.admin`) hands coroutines of the core to a driver.
"""
