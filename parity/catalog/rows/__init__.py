"""The rows, one file per family. Rows do not import torch."""
