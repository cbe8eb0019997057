"""Hub: an admin workspace whose heart is durable background jobs on PostgreSQL."""

__version__ = "0.1.0"
