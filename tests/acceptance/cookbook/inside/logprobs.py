"""Compare the log-probabilities of training and of a sampler after three updates.

logprobs.py MODEL FILE prints JSON: the mean squared difference in nats², and the number of tokens.
"""

import json
import sys
from pathlib import Path

import tinker
import torch
from tinker_cookbook.supervised.common import datum_from_model_input_weights

UPDATES = 3

model, file = sys.argv[1:]
training = tinker.ServiceClient().create_lora_training_client(base_model=model, rank=16).result()
tokens = torch.tensor(training.get_tokenizer().encode(Path(file).read_text()))[:1500]
weights = torch.ones(len(tokens))
weights[0] = 0.0
text = tinker.ModelInput.from_ints(tokens.tolist())
datum = datum_from_model_input_weights(text, weights, reduction="none")
losses = []
for update in range(UPDATES + 1):
    gradient = training.forward_backward([datum], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=1e-4 if update < UPDATES else 0.0)).result()
    trained = gradient.result().loss_fn_outputs[0]["logprobs"].to_torch()
    losses.append(-float(trained.mean()))
sampler = training.save_weights_and_get_sampling_client()
sampled = torch.tensor(sampler.compute_logprobs(text).result()[1:])
print(
    json.dumps(
        {"mse": float(((sampled - trained) ** 2).mean()), "tokens": len(tokens), "losses": losses}
    )
)
