"""Coverage of a run: features of the drawn cases, and pairs of op and dtype that were compared. It does not influence what is
drawn."""
