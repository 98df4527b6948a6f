"""The contract of a part, found by abstract evaluation: shapes, operations, bytes, peak memory."""
