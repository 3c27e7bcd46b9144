"""Training and held-out rows: loading, splits, mixtures, epochs and batches."""

from stages.data.bad_rows import BadRowsName, when_dropping
from stages.data.dataset import Epoch, Epochs, HeldOut, LoadDataset, ShuffledBatches
from stages.data.mixture import (
    LoadMixture,
    MixtureBatches,
    RenderMixture,
    ReportSourceLosses,
    UnpackMixture,
)
from stages.data.splits import DataConfig, HeldOutRowsConfig, RowsConfig
from stages.data.views import batches, rename, select, shuffle, skip, split, take

__all__ = [
    "BadRowsName",
    "DataConfig",
    "Epoch",
    "Epochs",
    "HeldOut",
    "HeldOutRowsConfig",
    "LoadDataset",
    "LoadMixture",
    "MixtureBatches",
    "RenderMixture",
    "ReportSourceLosses",
    "RowsConfig",
    "ShuffledBatches",
    "UnpackMixture",
    "batches",
    "rename",
    "select",
    "shuffle",
    "skip",
    "split",
    "take",
    "when_dropping",
]
