"""How busy the endpoints are: fetching metrics pages and reading them."""
