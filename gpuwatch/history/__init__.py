"""History: growth, idle times and values over time, kept from one snapshot to the next."""
