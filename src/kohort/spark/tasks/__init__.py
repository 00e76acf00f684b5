"""The executor side of the Spark sink: tasks that write partitions, and the Python that workers run."""
