"""Writing: records gather into batches, batches reach their leaders, transactions end."""
