"""Shared by all tests: a fresh registry, an engine whose prep and encoder are fakes."""
