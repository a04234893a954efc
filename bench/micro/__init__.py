"""CPU time of single steps, and of a whole request without its transport."""
