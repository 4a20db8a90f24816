"""Outcomes -> verdicts: budgets, measures, relations and laws. It never runs anything on a device under test."""
