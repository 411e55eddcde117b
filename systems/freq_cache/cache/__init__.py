"""One cache: the tables of one width, their rows in a slow tier and the hot ones in slots on the device."""
