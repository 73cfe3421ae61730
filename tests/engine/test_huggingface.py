"""Models of transformers, whole and with LoRA: right against autograd, and trained."""

import warnings

import pytest
import torch

import adadps
from adadps import Budget, examples, losses, poisson, privatize
from adadps.engine.passes.validation import objective
from adadps.errors import ModelError
from adadps.methods.stages import average_weights, chain, update_with
from adadps.tensors.sums import dense
from adadps.training.fit import PrivateRun

transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
peft = pytest.importorskip("peft", reason="needs the extra huggingface")

from adadps.engine.huggingface import prepared  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

ROWS, WORDS, LENGTH, CLASSES = 12, 60, 8, 3
GENERATOR = torch.Generator().manual_seed(0)
IDS = torch.randint(1, WORDS, (ROWS, LENGTH), generator=GENERATOR)
LENGTHS = torch.randint(2, LENGTH + 1, (ROWS, 1), generator=GENERATOR)
MASK = (torch.arange(LENGTH) < LENGTHS).long()
LABELS = torch.randint(CLASSES, (ROWS,), generator=GENERATOR)
TEXTS = {"input_ids": IDS * MASK, "attention_mask": MASK}
NEXT = torch.where(MASK > 0, IDS, -100)


def bert(**options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, num_labels=CLASSES, **{"max_position_embeddings": LENGTH, **options},
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2(**options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0, **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def with_lora(model, kind, *targets, **more):
    config = peft.LoraConfig(task_type=kind, r=4, target_modules=list(targets), **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of the layout of GPT-2's weights
        wrapped = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, value in wrapped.named_parameters():
        if "lora_B" in name:  # zeros at first, so that half of the gradients would be zero
            torch.nn.init.normal_(value, std=0.1)
    return wrapped


def with_prompts():
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)
    return peft.get_peft_model(bert(max_position_embeddings=LENGTH + 3), config)


CLASSIFIED = losses.of_logits(losses.cross_entropy)
EAGER = {"attn_implementation": "eager"}
CASES = {
    "BERT": (bert, CLASSIFIED, LABELS),
    "BERT, eager": (lambda: bert(**EAGER), CLASSIFIED, LABELS),
    "GPT-2": (gpt2, losses.next_token, NEXT),
    "GPT-2, eager": (lambda: gpt2(**EAGER), losses.next_token, NEXT),
    "BERT with LoRA": (lambda: with_lora(bert(), "SEQ_CLS", "query", "value"), CLASSIFIED, LABELS),
    "BERT with prompts": (with_prompts, CLASSIFIED, LABELS),
    "GPT-2 with LoRA": (lambda: with_lora(gpt2(), "CAUSAL_LM", "c_attn"), losses.next_token, NEXT),
}


def case(name):
    make, loss, targets = CASES[name]
    model = make()
    model.eval()  # without dropout, whose draws would differ from autograd's
    return model, loss, examples(TEXTS, targets)


def by_autograd(model, loss, data):
    """The model as its makers run it, with masks of two axes, one text at a time."""
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    held = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for row in range(len(data)):
        one = {name: value[row : row + 1] for name, value in TEXTS.items()}
        value = loss(model(**one), data.targets[row : row + 1]).sum()
        found = torch.autograd.grad(value, held, allow_unused=True)
        rows.append(
            {n: torch.zeros_like(p) if g is None else g
             for n, p, g in zip(names, held, found, strict=True)}
        )  # fmt: skip
    return rows


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name):
    model, loss, data = case(name)
    expected = by_autograd(model, loss, data)  # before it is prepared
    held = objective(prepared(model), loss, data)
    assert type(held.engine).__name__ == "GhostEngine"
    assert not held.engine.stored, "no gradient is stored"
    batch = held.per_unit(held.params(), data, None)
    norms = batch.norms()
    for row, wanted in enumerate(expected):
        weights = torch.zeros(len(norms), dtype=torch.float64)
        weights[row] = 1
        found = {n: dense(value) for n, value in batch.weighted_sum(weights).items()}
        total = sum(float(value.double().square().sum()) for value in wanted.values()) ** 0.5
        for parameter, value in wanted.items():
            torch.testing.assert_close(
                found[parameter].float(), value, rtol=1e-3, atol=1e-4 * total, msg=parameter
            )
        assert float(norms[row]) == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_what_padding_holds_changes_nothing(name):
    model, loss, data = case(name)
    held = objective(prepared(model), loss, data)
    other = examples({**TEXTS, "input_ids": torch.where(MASK > 0, IDS, 7)}, data.targets)
    found, expected = (held.per_unit(held.params(), one, None).norms() for one in (data, other))
    torch.testing.assert_close(found[:ROWS], expected[:ROWS], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "BERT with LoRA"])
def test_expanded_masks_give_the_same_outputs(name):
    model, _, _ = case(name)
    before = model(**TEXTS).logits
    after = prepared(prepared(model))(**TEXTS).logits
    shown = MASK.bool() if before.ndim == 3 else torch.ones(ROWS, dtype=torch.bool)
    torch.testing.assert_close(after[shown], before[shown], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["BERT with LoRA", "GPT-2"])
def test_a_run_trains_what_is_trainable_and_resumes(name, tmp_path):
    def begin():
        make, loss, targets = CASES[name]
        torch.manual_seed(3)
        return PrivateRun(
            prepared(make()), loss, examples(TEXTS, targets),
            method=chain(
                privatize(clip_norm=1.0, noise_multiplier=1.0),
                update_with(torch.optim.AdamW, lr=1e-3), average_weights(0.9),
            ),
            sampler=poisson(examples=ROWS, expected_size=4), steps=4, delta=1e-2,
            checkpoints=adadps.Checkpoints(tmp_path / "run", every=2),
        )  # fmt: skip

    run = begin()
    frozen = {
        n: p.clone() for n, p in run.objective.model.named_parameters() if not p.requires_grad
    }
    for batch in run.batches():
        run.step(batch)
        if batch.index == 3:
            break
    again = begin()
    assert again.taken == 2
    for batch in again.batches():
        again.step(batch)
    result = again.result()
    assert result.privacy.steps == 4
    assert result.params.keys() == again.params.keys()
    if "LoRA" in name:
        assert all("lora" in n or "classifier" in n for n in result.params)
    for n, value in frozen.items():
        assert torch.equal(value, again.objective.model.get_parameter(n))
    result.save(tmp_path / "result")
    loaded = adadps.load_result(tmp_path / "result")
    model = prepared(CASES[name][0]())
    assert loaded.outputs(model, TEXTS).logits.shape[0] == ROWS


def test_evaluation_reads_logits():
    def accuracy(outputs, targets):
        return adadps.accuracy(outputs.logits, targets)

    result = adadps.fit(
        prepared(bert()), CLASSIFIED, examples(TEXTS, LABELS),
        method=adadps.dp_sgd(lr=0.1), clip_norm=1.0, batch_size=4, steps=2,
        budget=Budget(epsilon=8, delta=1e-2),
        evaluate=[adadps.on_held_out("texts", TEXTS, LABELS, accuracy=accuracy)],
    )  # fmt: skip
    assert 0 <= result.last("accuracy") <= 1


def test_other_models_are_refused():
    with pytest.raises(ModelError, match="model of transformers"):
        prepared(torch.nn.Linear(2, 2))
    config = transformers.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2
    )
    with pytest.raises(ModelError, match="an encoder and a decoder"):
        prepared(transformers.T5ForConditionalGeneration(config))


def tiny(kind, **more):
    """A model of transformers from a small configuration."""
    sizes = {
        "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 2 * LENGTH, "bos_token_id": 1,
        "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    config = getattr(transformers, f"{kind.partition('For')[0]}Config")(**{**sizes, **more})
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("kind", ["OPTForCausalLM", "DebertaV2ForSequenceClassification"])
def test_models_that_read_masks_of_two_axes_for_something_else_are_refused(kind):
    more = {"ffn_dim": 16, "word_embed_proj_dim": 16} if "OPT" in kind else {}
    with pytest.raises(ModelError, match=f"padding masks of four axes.*{kind}"):
        prepared(tiny(kind, **more))


def test_texts_longer_than_a_sliding_window_are_refused():
    """The expanded mask would show every word, which is another model."""
    model = prepared(tiny("MistralForCausalLM", num_key_value_heads=1, sliding_window=LENGTH - 1))
    with pytest.raises(ModelError, match=f"at most {LENGTH - 1} tokens, found {LENGTH}"):
        objective(model, losses.next_token, examples(TEXTS, NEXT))
    within = prepared(tiny("MistralForCausalLM", num_key_value_heads=1, sliding_window=LENGTH))
    assert within(**TEXTS).logits.shape == (ROWS, LENGTH, WORDS)


def test_gradient_checkpointing_is_refused_with_the_cure():
    model = bert()
    model.gradient_checkpointing_enable()
    with pytest.raises(ModelError, match="gradient_checkpointing_disable"):
        prepared(model)


def test_texts_are_generated_as_before():
    model = gpt2().eval()
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    before = model.generate(IDS[:2, :4], **options)
    assert torch.equal(prepared(model).generate(IDS[:2, :4], **options), before)


def test_adapters_are_not_switched_in_the_middle_of_a_run():
    model = prepared(with_lora(bert(), "SEQ_CLS", "query"))
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["query"]))
    model.set_adapter("default")
    noisy = privatize(clip_norm=1.0, noise_multiplier=1.0)
    run = PrivateRun(
        model, CLASSIFIED, examples(TEXTS, LABELS),
        method=adadps.dp_sgd(noisy, lr=0.5), batch_size=4, steps=3, delta=1e-2,
        accountant=adadps.Accountant.RDP,
    )  # fmt: skip
    batches = run.batches()
    run.step(next(batches))
    model.set_adapter("other")
    with pytest.raises(ModelError, match="frozen, unfrozen"):
        next(batches)


def test_gradient_checkpointing_that_is_switched_on_later_is_refused_too():
    model = prepared(bert())
    model.gradient_checkpointing_enable()
    with pytest.raises(ModelError, match="gradient_checkpointing_disable"):
        objective(model, CLASSIFIED, examples(TEXTS, LABELS))
