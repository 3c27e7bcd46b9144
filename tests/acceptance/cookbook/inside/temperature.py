"""Compare the frequencies of sampled tokens with their probabilities.

At temperature T, log(n_a / n_b) must be (log p_a - log p_b) / T within the error of counting.
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

TEMPERATURES, DRAWN, ENOUGH, STOP = (0.5, 1.0, 1.5), 600, 15, ["<|im_end|>"]


async def main(model: str) -> None:
    sampler = await tinker.ServiceClient().create_sampling_client_async(base_model=model)
    prompt = get_tokenizer(model).encode("The coin shows")
    model_input = tinker.ModelInput.from_ints(prompt)
    found = {}
    for heat in TEMPERATURES:
        draw = TinkerTokenCompleter(sampler, max_tokens=1, temperature=heat)
        drawn = await asyncio.gather(*(draw(model_input, STOP) for _ in range(DRAWN)))
        counts = [
            pair
            for pair in Counter(one.tokens[0] for one in drawn).most_common()
            if pair[1] >= ENOUGH
        ]
        likely = [
            (await sampler.compute_logprobs_async(tinker.ModelInput.from_ints([*prompt, token])))[
                -1
            ]
            for token, _ in counts
        ]
        top, first = counts[0][1], likely[0]
        apart = [
            abs(math.log(count / top) - (own - first) / heat) / math.sqrt(1 / count + 1 / top)
            for (_, count), own in zip(counts[1:], likely[1:], strict=True)
        ]
        found[str(heat)] = {
            "errors": max(apart, default=math.inf),
            "pairs": len(apart),
            "drawn": DRAWN,
        }
    greedy = TinkerTokenCompleter(sampler, max_tokens=8, temperature=0.0)
    found["0"] = {
        "answers": len({tuple((await greedy(model_input, STOP)).tokens) for _ in range(5)})
    }
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
