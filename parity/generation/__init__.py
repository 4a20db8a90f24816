"""Catalog row -> cases, and a failing case -> the least one that fails alike. Nothing here runs a case."""
