"""Publication of trained weights at a model hub."""

from __future__ import annotations

from collections.abc import Iterable

from kitchen.artifacts.publish import check_repository_name, publish
from kitchen.artifacts.weights import weights_of
from kitchen.ports import BlobStore, CheckpointStore, HubClient, TrainingClient
from kitchen.stage import Need, Stage
from kitchen.types import RunId, Table
from stages.train.session import FinalWeights


class Publish(Stage):
    """Export the final weights and publish them at a hub, with a model card of the run so far."""

    repo: str  # OWNER/NAME

    def run(
        self,
        store: CheckpointStore,
        hub: HubClient,
        blobs: BlobStore,
        run: RunId,
        weights: FinalWeights,
    ) -> Table:
        url = publish(weights_of(run.id, weights, blobs), self.repo, store, hub, blobs)
        return Table("Published", ("as", "where"), ((self.repo, url),))

    def verify(self) -> None:
        check_repository_name(self.repo)

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "export")]
