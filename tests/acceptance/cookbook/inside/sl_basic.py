"""Run the cookbook's sl_basic on a local file, as a comment in it suggests.

sl_basic.py MODEL FILE LOG STEPS
"""

import sys

from tinker_cookbook.recipes import sl_basic
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

model, file, log, steps = sys.argv[1:]
common = ChatDatasetBuilderCommonConfig(
    model_name_for_tokenizer=model, renderer_name="qwen3_instruct", max_length=512, batch_size=8
)
sl_basic.main(
    sl_basic.build_config_blueprint(model)
    .apply(
        {
            "dataset_builder": FromConversationFileBuilder(
                common_config=common, file_path=file, test_size=16
            ),
            "log_path": log,
            "lora_rank": 16,
            "eval_every": 4,
            "max_steps": int(steps),
        }
    )
    .make()
)
