"""Fetches images that callers name by URL. Trusts neither the caller who names it nor the server that answers."""
