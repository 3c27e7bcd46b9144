"""Conversations, chat templates, loss masks and tools."""

from stages.chat.conversations import Conversation, Message, TrainRows
from stages.chat.masks import TrainOn
from stages.chat.render import RenderDataset, TrainData
from stages.chat.tools import Tool, ToolQuestion

__all__ = [
    "Conversation",
    "Message",
    "RenderDataset",
    "Tool",
    "ToolQuestion",
    "TrainData",
    "TrainOn",
    "TrainRows",
]
