"""What `mulgil doctor` measures on the way between a gateway and its clients, and what it makes of it."""
