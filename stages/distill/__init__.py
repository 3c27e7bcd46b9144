"""Distillation from teachers: on-policy and off-policy."""

from stages.distill.off_policy import EvaluateTeacher, TakeAnswers, WriteAnswers, Writing
from stages.distill.on_policy import AskRows, AskSources, ImitateTop, ReportAnswers
from stages.distill.teachers import OpenTeachers, ScoreByTeachers, Teachers

__all__ = [
    "AskRows",
    "AskSources",
    "EvaluateTeacher",
    "ImitateTop",
    "OpenTeachers",
    "ReportAnswers",
    "ScoreByTeachers",
    "TakeAnswers",
    "Teachers",
    "WriteAnswers",
    "Writing",
]
