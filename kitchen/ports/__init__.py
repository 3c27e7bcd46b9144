"""The ports: everything that a recipe needs from the world, as Protocols."""

from kitchen.ports.blobs import BlobStore, blob_name
from kitchen.ports.checkpointable import Checkpointable, hides_checkpointable, is_checkpointable
from kitchen.ports.datasets import Dataset, DatasetInfo, DatasetStore, Row, StreamedRow
from kitchen.ports.future import Done, Failed, Future, Pending, arrival, start
from kitchen.ports.hub import HubClient, ModelInfo
from kitchen.ports.sampling import Message, Sampler, SamplingClient, Tokenizer, ToolSchema
from kitchen.ports.training import (
    CheckpointStore,
    ModelCatalog,
    TrainingBackend,
    TrainingClient,
    TrainingSession,
)

__all__ = [
    "BlobStore",
    "CheckpointStore",
    "Checkpointable",
    "Dataset",
    "DatasetInfo",
    "DatasetStore",
    "Done",
    "Failed",
    "Future",
    "HubClient",
    "Message",
    "ModelCatalog",
    "ModelInfo",
    "Pending",
    "Row",
    "Sampler",
    "SamplingClient",
    "StreamedRow",
    "Tokenizer",
    "ToolSchema",
    "TrainingBackend",
    "TrainingClient",
    "TrainingSession",
    "arrival",
    "blob_name",
    "hides_checkpointable",
    "is_checkpointable",
    "start",
]
