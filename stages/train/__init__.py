"""Training sessions, optimiser steps, schedules, custom losses and saved weights."""

from stages.train.optim import ForwardBackward, LearningRate, OptimStep, ReportStep
from stages.train.publish import Publish
from stages.train.schedules import (
    Constant,
    Cosine,
    Linear,
    Schedule,
    ScheduleName,
    check_planned,
    make_schedule,
)
from stages.train.session import FinalWeights, OpenSession, SaveFinal, default_alpha
from stages.train.suggested_lr import LORA_FACTOR
from stages.train.torch_loss import TorchLoss

__all__ = [
    "LORA_FACTOR",
    "Constant",
    "Cosine",
    "FinalWeights",
    "ForwardBackward",
    "LearningRate",
    "Linear",
    "OpenSession",
    "OptimStep",
    "Publish",
    "ReportStep",
    "SaveFinal",
    "Schedule",
    "ScheduleName",
    "TorchLoss",
    "check_planned",
    "default_alpha",
    "make_schedule",
]
