"""Comparison of people's own functions, modules and results, with the same three runs and the same judge as the suite."""
