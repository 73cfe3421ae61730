"""Models of transformers and peft are saved with their privacy card."""

import json

import pytest
import torch

from adadps import PrivateRun, dp_sgd, examples, losses, privatize
from adadps.errors import DataError, ModelError
from adadps.report.pretrained import save_pretrained

transformers = pytest.importorskip("transformers", reason="needs the extra huggingface")
peft = pytest.importorskip("peft", reason="needs the extra huggingface")

from adadps.engine.huggingface import prepared  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TOKENS = torch.arange(48).view(8, 6) % 20
LABELS = torch.arange(8) % 2


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=6, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def with_lora(model):
    return peft.get_peft_model(
        model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    )


def trained(model):
    run = PrivateRun(
        prepared(model), losses.of_logits(losses.cross_entropy),
        examples({"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}, LABELS),
        method=dp_sgd(privatize(clip_norm=1.0, noise_multiplier=2.0), lr=0.1),
        batch_size=2, steps=1, delta=1e-3,
    )  # fmt: skip
    for batch in run.batches():
        run.step(batch)
    return run.result()


def test_an_adapter_goes_out_with_its_card_and_without_the_frozen_model(tmp_path):
    model = with_lora(bert())
    result = trained(model)
    folder = save_pretrained(model, result, tmp_path / "private-lora")
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: peft\n")
    assert f"ε = {result.privacy.epsilon:.1f}"[:5] in card
    assert "Assumed public" in card
    assert "read off the data: 8" in card
    stated = json.loads((folder / "result.json").read_text())
    assert stated["privacy"]["noise_multiplier"] == 2.0
    adapter = peft.PeftModel.from_pretrained(bert(), folder)
    held = dict(adapter.named_parameters())
    for name, value in result.params.items():
        assert torch.equal(held[name], value), name
    assert not list(folder.glob("*.bin")), "nothing is pickled"
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert written < sum(4 * p.numel() for p in model.parameters()) / 2


def test_a_whole_model_is_loaded_again_with_its_cache(tmp_path):
    model = bert()
    assert model.config.use_cache
    result = trained(model)
    folder = save_pretrained(model, result, tmp_path / "private-bert")
    assert not model.config.use_cache
    again = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert again.config.use_cache
    for name, value in again.named_parameters():
        assert torch.equal(value, result.params[name]), name


def test_other_weights_and_other_models_are_refused(tmp_path):
    model = bert()
    result = trained(model)
    with torch.no_grad():
        model.classifier.bias.add_(1.0)
    with pytest.raises(DataError, match="the card would be that of another model"):
        save_pretrained(model, result, tmp_path / "other")
    with pytest.raises(ModelError, match=r"result\.save"):
        save_pretrained(torch.nn.Linear(2, 2), result, tmp_path / "other")
    assert not (tmp_path / "other").exists()
