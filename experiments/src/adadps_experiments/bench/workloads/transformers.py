"""BERT of Hugging Face, small and from a configuration: all weights, and LoRA."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from adadps_experiments.bench.workloads.base import FEW
from adadps_experiments.bench.workloads.texts import TextClassifier


class BertOnTokens(nn.Module):
    """A BERT whose only input is a matrix of tokens.

    Positions and types are given for every text: Opacus cannot tell examples apart where a table is
    read once for all of them.
    """

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the score of each class."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        types = torch.zeros_like(tokens)
        scores: Tensor = self.bert(
            input_ids=tokens, position_ids=places, token_type_ids=types
        ).logits
        return scores


@dataclass(frozen=True)
class BertClassifier(TextClassifier):
    """BERT-tiny: two layers of width 128, without dropout."""

    vocabulary: int = 30_522
    width: int = 128
    layers: int = 2
    heads: int = 2

    def tiny(self) -> TextClassifier:
        """Return a copy with 30 words, one layer, and texts of 6 words."""
        return replace(self, **FEW, vocabulary=30, width=8, length=6, layers=1)

    def parameters(self) -> int:
        """Count the parameters that are trained."""
        return sum(value.numel() for value in self.model().parameters() if value.requires_grad)

    def model(self) -> nn.Module:
        """Return the model, all of whose weights are trained."""
        return BertOnTokens(self.bert())

    def bert(self) -> nn.Module:
        """Return the model of transformers."""
        import transformers

        config = transformers.BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            max_position_embeddings=self.length,
            num_labels=self.classes,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        made: nn.Module = transformers.BertForSequenceClassification(config)
        return made


@dataclass(frozen=True)
class LoraClassifier(BertClassifier):
    """The same with LoRA of rank 8 on queries and values; the head is trained, too."""

    rank: int = 8

    def model(self) -> nn.Module:
        """Return the model, most of whose weights are frozen."""
        import peft

        config = peft.LoraConfig(
            task_type="SEQ_CLS", r=self.rank, target_modules=["query", "value"]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft, about transformers
            return BertOnTokens(peft.get_peft_model(self.bert(), config))
