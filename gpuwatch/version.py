"""Version of gpuwatch; the build reads it here."""

__version__ = "0.2.0"
