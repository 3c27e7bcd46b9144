"""Compare the frequencies of sampled tokens with their probabilities.

At temperature T, log(n_a / n_b) must be (log p_a - log p_b) / T within the sampling error.
temperature.py MODEL prints JSON: by temperature, the largest difference in standard errors, the
number of pairs of tokens, and the number of samples.
"""

import asyncio
import json
import math
import sys
from collections import Counter

import tinker
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.tokenizer_utils import get_tokenizer

TEMPERATURES, STOP = (0.5, 1.0, 1.5), ["<|im_end|>"]
SAMPLES, MIN_COUNT = 600, 15  # per temperature; rarer tokens are not compared


async def main(model: str) -> None:
    sampler = await tinker.ServiceClient().create_sampling_client_async(base_model=model)
    prompt = get_tokenizer(model).encode("The coin shows")
    model_input = tinker.ModelInput.from_ints(prompt)
    results = {}
    for temperature in TEMPERATURES:
        complete = TinkerTokenCompleter(sampler, max_tokens=1, temperature=temperature)
        completions = await asyncio.gather(*(complete(model_input, STOP) for _ in range(SAMPLES)))
        counts = [
            pair
            for pair in Counter(completion.tokens[0] for completion in completions).most_common()
            if pair[1] >= MIN_COUNT
        ]
        logprobs = [
            (await sampler.compute_logprobs_async(tinker.ModelInput.from_ints([*prompt, token])))[
                -1
            ]
            for token, _ in counts
        ]
        top_count, top_logprob = counts[0][1], logprobs[0]
        errors = [
            abs(math.log(count / top_count) - (logprob - top_logprob) / temperature)
            / math.sqrt(1 / count + 1 / top_count)
            for (_, count), logprob in zip(counts[1:], logprobs[1:], strict=True)
        ]
        results[str(temperature)] = {
            "errors": max(errors, default=math.inf),
            "pairs": len(errors),
            "samples": SAMPLES,
        }
    greedy = TinkerTokenCompleter(sampler, max_tokens=8, temperature=0.0)
    results["0"] = {
        "answers": len({tuple((await greedy(model_input, STOP)).tokens) for _ in range(5)})
    }
    print(json.dumps(results))


asyncio.run(main(*sys.argv[1:]))
