"""The first module and operator of a model that diverges, on this machine or recorded on another."""
