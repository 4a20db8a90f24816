"""The errors that are put into results which agree, to measure the judge's power, and what it makes of each."""

ERRORS = ("every element by half", "one element by 5 %", "every element by 1 %", "one NaN or Inf")
SEEN, PROVED, BLIND = "seen", "proved", "blind"
