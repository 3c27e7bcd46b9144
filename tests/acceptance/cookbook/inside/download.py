"""Download a checkpoint by the cookbook's own function, which has the server encrypt the files.

download.py MODEL FOLDER prints JSON: the base model in PEFT's configuration, the names of the
files, whether they are those of an export that was not encrypted, and the checkpoints left over.
"""

import json
import sys
from pathlib import Path

import tinker
from tinker_cookbook import weights

model, folder = sys.argv[1:]
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model=model, rank=16).result()
kept = training.save_state("kept").result().path
plain = training.save_weights_external("plain").result().path
folders = [Path(folder) / name for name in ("kept", "plain")]
for path, target in zip((kept, plain), folders, strict=True):
    weights.download(tinker_path=path, output_dir=str(target))
files = [
    {str(file.relative_to(each)): file.read_bytes() for file in each.rglob("*") if file.is_file()}
    for each in folders
]
checkpoints = service.create_rest_client().list_user_checkpoints().result().checkpoints
print(
    json.dumps(
        {
            "base": json.loads(files[0]["adapter_config.json"])["base_model_name_or_path"],
            "files": sorted(files[0]),
            "equal": files[0] == files[1],
            "left": sum("download" in each.tinker_path for each in checkpoints),
        }
    )
)
