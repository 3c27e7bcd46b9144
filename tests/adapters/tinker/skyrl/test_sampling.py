"""Log-probabilities of prompts on SkyRL."""

from __future__ import annotations

import pytest

from adapters.tinker.skyrl.messages import post
from adapters.tinker.skyrl.sampling import PromptLogprobs
from tests.support.skyrl_replies import SAMPLES, ReplayedSkyRL


# JAX returns 2 values for 3 tokens; vLLM, behind the FSDP and Megatron backends, one per token
@pytest.mark.parametrize("values", [[-3.0, -0.5], [None, -3.0, -0.5]])
def test_first_token_has_no_logprob(values: list[float | None]) -> None:
    skyrl = ReplayedSkyRL(retrieve_future={**SAMPLES, "prompt_logprobs": values})
    quirk = PromptLogprobs()
    quirk(post("asample", {"prompt": {"chunks": [{"tokens": [1, 2]}, {"tokens": [3]}]}}), skyrl)
    answer = quirk(post("retrieve_future", {"request_id": "1"}), skyrl)
    assert answer.json()["prompt_logprobs"] == [None, -3.0, -0.5]
