"""Distillation from teachers: on-policy and off-policy."""

from stages.distill.held_out_kl import MeasureTeacherKL
from stages.distill.off_policy import (
    EvaluateTeacher,
    GenerateTeacherAnswers,
    GenerationConfig,
    ReplaceAnswers,
    TeacherRows,
    teacher_of,
)
from stages.distill.on_policy import (
    DivergenceName,
    DropBadPrompts,
    PromptsFromRows,
    PromptsFromSources,
    ReportAnswers,
    TopKTargets,
    divergence_steps,
    load_prompts,
)
from stages.distill.teachers import (
    ComputeTeacherLogprobs,
    OpenTeachers,
    Teachers,
    check_chat,
    teacher_names,
)

__all__ = [
    "ComputeTeacherLogprobs",
    "DivergenceName",
    "DropBadPrompts",
    "EvaluateTeacher",
    "GenerateTeacherAnswers",
    "GenerationConfig",
    "MeasureTeacherKL",
    "OpenTeachers",
    "PromptsFromRows",
    "PromptsFromSources",
    "ReplaceAnswers",
    "ReportAnswers",
    "TeacherRows",
    "Teachers",
    "TopKTargets",
    "check_chat",
    "divergence_steps",
    "load_prompts",
    "teacher_names",
    "teacher_of",
]
