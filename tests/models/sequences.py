"""Networks on sequences and graphs. Those on tokens also take the embedded tokens, to be differentiated by them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def embedded(table: nn.Embedding, tokens: Tensor) -> Tensor:
    """Rows of the table for tokens; what is embedded already as it is."""
    return tokens if tokens.is_floating_point() else table(tokens)


class Tagger(nn.Module):
    """A bidirectional LSTM that gives each token a tag."""

    def __init__(self, words: int = 11, dim: int = 4, hidden: int = 5, tags: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(embedded(self.embed, x))
        return self.head(states)


class Seq2Seq(nn.Module):
    """A GRU reads, a GRU cell writes, and looks back at what was read by additive attention."""

    def __init__(self, words: int = 9, dim: int = 4, hidden: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.encoder = nn.GRU(dim, hidden, batch_first=True)
        self.cell = nn.GRUCell(dim + hidden, hidden)
        self.query, self.key = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden)
        self.energy = nn.Linear(hidden, 1, bias=False)
        self.head = nn.Linear(2 * hidden, words)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        read, last = self.encoder(embedded(self.embed, source))
        keys, state, outputs = self.key(read), last[-1], []
        for word in embedded(self.embed, written).unbind(1):
            weights = torch.softmax(self.energy(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1), -1)
            context = torch.bmm(weights[:, None], read)[:, 0]
            state = self.cell(torch.cat([word, context], -1), state)
            outputs.append(self.head(torch.cat([state, context], -1)))
        return torch.stack(outputs, 1)


class GraphNet(nn.Module):
    """Messages along edges, their mean gathered at each node by `index_add_` and their maximum by `scatter_reduce`."""

    def __init__(self, features: int = 3, hidden: int = 4, classes: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(features, hidden)
        self.messages = nn.ModuleList(nn.Linear(2 * hidden, hidden) for _ in range(2))
        self.updates = nn.ModuleList(nn.Linear(3 * hidden, hidden) for _ in range(2))
        self.head = nn.Linear(hidden, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """One graph: nodes `[n, features]`, edges `[2, m]`."""
        h, (source, target) = torch.tanh(self.enter(nodes)), edges.unbind(0)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.elu(message(torch.cat([h[source], h[target]], -1)))
            one = torch.ones_like(target, dtype=h.dtype)
            degree = torch.zeros(h.shape[0], dtype=h.dtype).scatter_add_(0, target, one)
            mean = torch.zeros_like(h).index_add_(0, target, sent) / degree.clamp(min=1)[:, None]
            index = target[:, None].expand_as(sent)
            highest = torch.zeros_like(h).scatter_reduce(0, index, sent, "amax", include_self=False)
            h = h + torch.tanh(update(torch.cat([h, mean, highest], -1)))
        return self.head(h.mean(0))


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attend, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        parts = self.attend(self.norm1(x)).split(d, -1)
        q, k, v = (t.view(b, n, self.heads, d // self.heads).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).contiguous().view(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Four blocks; the table of the tokens is the last layer's weight too."""

    def __init__(self, words: int = 13, length: int = 6, dim: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, 2) for _ in range(4)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        x = embedded(self.tokens, x)
        x = x + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))
