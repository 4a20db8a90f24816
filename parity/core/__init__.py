"""The data types that every other folder uses: cases, results, dtypes, layouts, the notation of a case, and the errors of the
user. Nothing here computes, and nothing here knows a device."""
