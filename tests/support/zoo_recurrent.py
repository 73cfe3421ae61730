"""Recurrent models: what is read of their outputs, states, lengths, and cells in a loop."""

import torch
from torch import nn

from support.models import Custom
from support.zoo import STEPS, WORDS, Entry, numbers, split_lengths, with_lengths, words

WIDTH, HIDDEN = 4, 5


def last(m, x):
    return m.head(m.cells(x)[0][:, -1])


def mean(m, x):
    return m.head(m.cells(x)[0].mean(1))


def time_first(m, x):
    return m.head(m.cells(x.transpose(0, 1))[0][-1])


def final_state(m, x):
    """h_n of the last layer, of both directions if there are two."""
    states = m.cells(x)[1]
    states = states[0] if isinstance(states, tuple) else states
    directions = 2 if m.cells.bidirectional else 1
    return m.head(torch.cat(list(states[-directions:]), -1))


def cell_state(m, x):
    return m.head(m.cells(x)[1][1][-1])


def recurrent(kind=nn.LSTM, forward=last, outputs=HIDDEN, **options):
    options.setdefault("batch_first", forward is not time_first)
    cells = kind(WIDTH, HIDDEN, **options)
    return Custom(forward, cells=cells, head=nn.Linear(outputs, 2))


def given_states(kind=nn.LSTM):
    """The initial states are parameters."""

    def forward(m, x):
        held = [state.expand(-1, x.shape[0], -1).contiguous() for state in m.initial]
        states = tuple(held) if kind is nn.LSTM else held[0]
        return m.head(m.cells(x, states)[0][:, -1])

    count = 2 if kind is nn.LSTM else 1
    return Custom(
        forward,
        cells=kind(WIDTH, HIDDEN, batch_first=True),
        initial=nn.ParameterList(0.3 * torch.randn(1, 1, HIDDEN) for _ in range(count)),
        head=nn.Linear(HIDDEN, 2),
    )


def made_states(kind=nn.LSTM):
    """The initial state is made from the input."""

    def forward(m, x):
        state = torch.tanh(m.start(x[:, 0])).unsqueeze(0)
        states = (state, torch.zeros_like(state)) if kind is nn.LSTM else state
        return m.head(m.cells(x, states)[0].mean(1))

    return Custom(
        forward,
        start=nn.Linear(WIDTH, HIDDEN),
        cells=kind(WIDTH, HIDDEN, batch_first=True),
        head=nn.Linear(HIDDEN, 2),
    )


def last_valid(kind):
    def forward(m, x):
        x, lengths = split_lengths(x)
        outputs = m.cells(x)[0]
        places = (lengths - 1).view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
        return m.head(outputs.gather(1, places).squeeze(1))

    return lambda: recurrent(kind, forward)


def masked_mean():
    def forward(m, x):
        x, lengths = split_lengths(x)
        outputs = m.cells(x)[0]
        mask = (torch.arange(x.shape[1]) < lengths[:, None]).to(outputs.dtype).unsqueeze(-1)
        return m.head((outputs * mask).sum(1) / mask.sum(1))

    return recurrent(nn.LSTM, forward)


def cells_in_a_loop(kind, **options):
    def forward(m, x):
        state = None
        for step in range(x.shape[1]):
            state = m.cell(x[:, step]) if state is None else m.cell(x[:, step], state)
        return m.head(state[0] if isinstance(state, tuple) else state)

    return Custom(forward, cell=kind(WIDTH, HIDDEN, **options), head=nn.Linear(HIDDEN, 2))


def cells_with_given_state():
    def forward(m, x):
        state = x.new_zeros(x.shape[0], HIDDEN)
        found = []
        for step in range(x.shape[1]):
            state = m.cell(x[:, step], state)
            found.append(m.head(state))
        return torch.stack(found, 1).mean(1)

    return Custom(forward, cell=nn.GRUCell(WIDTH, HIDDEN), head=nn.Linear(HIDDEN, 2))


def text():
    return Custom(
        lambda m, x: m.head(m.cells(m.words(x))[0][:, -1]),
        words=nn.Embedding(WORDS, WIDTH, padding_idx=0),
        cells=nn.LSTM(WIDTH, HIDDEN, 2, batch_first=True),
        head=nn.Linear(HIDDEN, 2),
    )


def encoder_and_decoder():
    """A generator: the decoder starts from the encoder's state and reads its own outputs."""

    def forward(m, x):
        state = m.encoder(x)[1]
        step, found = x[:, -1:], []
        for _ in range(3):
            out, state = m.decoder(step, state)
            step = m.head(out)
            found.append(step)
        return torch.cat(found, 1).mean(1)[:, :2]

    return Custom(
        forward,
        encoder=nn.GRU(WIDTH, HIDDEN, batch_first=True),
        decoder=nn.GRU(WIDTH, HIDDEN, batch_first=True),
        head=nn.Linear(HIDDEN, WIDTH),
    )


def same_recurrence_twice():
    return Custom(
        lambda m, x: m.head(m.cells(m.cells(x)[0])[0][:, -1]),
        cells=nn.LSTM(WIDTH, WIDTH, batch_first=True),
        head=nn.Linear(WIDTH, 2),
    )


SEQUENCES = numbers(STEPS, WIDTH)


def entry(*arguments, **options):
    return Entry(lambda: recurrent(*arguments, **options), SEQUENCES)


RECURRENT = {
    "LSTM, last output": entry(),
    "LSTM, mean": entry(nn.LSTM, mean),
    "LSTM, both directions": entry(nn.LSTM, mean, 2 * HIDDEN, bidirectional=True),
    "LSTM, two layers": entry(num_layers=2),
    "LSTM, two layers, both directions, h_n": entry(
        nn.LSTM, final_state, 2 * HIDDEN, num_layers=2, bidirectional=True
    ),
    "LSTM, time first": entry(nn.LSTM, time_first),
    "LSTM, h_n": entry(nn.LSTM, final_state),
    "LSTM, c_n": entry(nn.LSTM, cell_state),
    "LSTM, projections": entry(nn.LSTM, last, 3, proj_size=3),
    "LSTM, no bias": entry(bias=False),
    "LSTM, initial states are parameters": Entry(given_states, SEQUENCES),
    "LSTM, initial states from the input": Entry(made_states, SEQUENCES),
    "LSTM, last valid output": Entry(last_valid(nn.LSTM), with_lengths(WIDTH)),
    "LSTM, mean of valid outputs": Entry(masked_mean, with_lengths(WIDTH)),
    "LSTM, dropout between layers": Entry(
        lambda: recurrent(num_layers=2, dropout=0.5), SEQUENCES, evaluating=True
    ),
    "LSTM on words": Entry(text, words()),
    "LSTM, same layer twice": Entry(same_recurrence_twice, SEQUENCES),
    "GRU, last output": entry(nn.GRU),
    "GRU, two layers, both directions": entry(
        nn.GRU, mean, 2 * HIDDEN, num_layers=2, bidirectional=True
    ),
    "GRU, time first": entry(nn.GRU, time_first),
    "GRU, h_n, no bias": entry(nn.GRU, final_state, bias=False),
    "GRU, initial state is a parameter": Entry(lambda: given_states(nn.GRU), SEQUENCES),
    "GRU, initial state from the input": Entry(lambda: made_states(nn.GRU), SEQUENCES),
    "GRU, last valid output": Entry(last_valid(nn.GRU), with_lengths(WIDTH)),
    "GRU, encoder and decoder": Entry(encoder_and_decoder, SEQUENCES),
    "RNN, tanh": entry(nn.RNN),
    "RNN, relu, two layers": entry(nn.RNN, mean, num_layers=2, nonlinearity="relu"),
    "RNN, both directions, h_n": entry(nn.RNN, final_state, 2 * HIDDEN, bidirectional=True),
    "RNN, initial state is a parameter": Entry(lambda: given_states(nn.RNN), SEQUENCES),
    "LSTMCell": Entry(lambda: cells_in_a_loop(nn.LSTMCell), SEQUENCES),
    "GRUCell": Entry(lambda: cells_in_a_loop(nn.GRUCell), SEQUENCES),
    "RNNCell": Entry(lambda: cells_in_a_loop(nn.RNNCell, bias=False), SEQUENCES),
    "GRUCell, state given, every output read": Entry(cells_with_given_state, SEQUENCES),
}
