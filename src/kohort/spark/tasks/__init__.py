"""The Spark source's and sink's executor side: tasks that read and write partitions."""
