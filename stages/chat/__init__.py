"""Conversations, chat templates, loss masks and tools."""

from stages.chat.conversations import Conversation, TrainRows
from stages.chat.masks import TrainOn
from stages.chat.messages import Message
from stages.chat.render import RenderDataset, TrainData
from stages.chat.template import PromptRendering
from stages.chat.tools import Tool, ToolQuestion

__all__ = [
    "Conversation",
    "Message",
    "PromptRendering",
    "RenderDataset",
    "Tool",
    "ToolQuestion",
    "TrainData",
    "TrainOn",
    "TrainRows",
]
