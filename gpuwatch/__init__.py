"""gpuwatch: a live, truthful monitor for GPUs that several people share."""

__version__ = "0.1.0"
