"""The laws of sampling clients that give text, for ensembles."""

from __future__ import annotations

from pathlib import Path

from kitchen.ports import SamplingClient
from kitchen.testing.text_sampling import TextSamplingLaws
from stages.ensemble.client import EnsembleSampling
from tests.support.voters import Voters


class TestEnsembleSampling(TextSamplingLaws):
    model = "ensemble:three.yaml"
    unknown_model = "ensemble:missing.yaml"

    def client(self, tmp_path: Path) -> SamplingClient:
        file = tmp_path / "three.yaml"
        file.write_text("members: [a-1, b-1, c-0]\n")
        self.model = f"ensemble:{file}"
        return EnsembleSampling(Voters())
