"""The ports: everything a recipe needs from the world, as Protocols."""

from kitchen.ports.blobs import BlobStore, blob_name
from kitchen.ports.datasets import Dataset, DatasetInfo, DatasetStore, Row, StreamedRow
from kitchen.ports.future import Done, Failed, Future, Pending, arrival, start
from kitchen.ports.hub import HubClient, ModelInfo
from kitchen.ports.live import Live, hides_live, is_live
from kitchen.ports.training import Message, Sampler, Tokenizer, ToolSchema, TrainingClient, TrainingSession

__all__ = [
    "BlobStore", "Dataset", "DatasetInfo", "DatasetStore", "Done", "Failed", "Future", "HubClient", "Live", "Message",
    "ModelInfo", "Pending", "Row", "Sampler", "StreamedRow", "Tokenizer", "ToolSchema", "TrainingClient",
    "TrainingSession", "arrival", "blob_name", "hides_live", "is_live", "start",
]
