"""Training and held-out rows: loading, splits, mixtures, epochs and batches."""

from stages.data.dataset import Epoch, Epochs, HeldOut, LoadDataset, ShuffledBatches
from stages.data.mixture import LoadMixture, MixedBatches, RenderMixture, ReportSources, Unmix
from stages.data.splits import Reading
from stages.data.views import batches, renamed, select, shuffle, skip, split, take

__all__ = [
    "Epoch",
    "Epochs",
    "HeldOut",
    "LoadDataset",
    "LoadMixture",
    "MixedBatches",
    "Reading",
    "RenderMixture",
    "ReportSources",
    "ShuffledBatches",
    "Unmix",
    "batches",
    "renamed",
    "select",
    "shuffle",
    "skip",
    "split",
    "take",
]
