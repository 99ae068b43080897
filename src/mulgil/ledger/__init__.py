"""The usage ledger: a durable row for each piece of work, what it costs, and who may spend no more."""
