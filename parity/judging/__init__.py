"""Outcomes -> verdicts: budgets, measures, relations and laws."""
