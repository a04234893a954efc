"""Who is there: one module a source of members, all giving the same stream of endpoint sets."""
