"""Who may use how much: limits, leases, and the store they are kept in."""
