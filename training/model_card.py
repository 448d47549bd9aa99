"""The card of a published head: what it is, how it was made, how it drafts, how to serve it.

Every figure is one of the head's own facts; where there is none, its section is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import ModelCardData
from transformers import LlamaConfig

from schemafill.inference.model.head_facts import HeadFacts
from schemafill.training.head_formats import DRAFT_TOKENS

TAGS = ["eagle3", "speculative-decoding", "draft-model", "tool-calling", "function-calling", "vllm", "sglang"]
MEASURED = ("accepted_length", "acceptance", "acceptance_by_region", "share_in_vocabulary", "starts")
"""Figures of `training.evaluate` that have their own place on the card."""
VLLM_FOLDER = "vllm"
BASE_LICENSE = "other"


@dataclass(frozen=True, kw_only=True)
class CardInputs:
    """What a card says that the head does not know. license None: that of the base model holds."""

    repo: str
    base_model: str
    license: str | None = None
    datasets: Sequence[str] = ()


def card_text(config: LlamaConfig, facts: HeadFacts, inputs: CardInputs) -> str:
    parts = [
        _what(config, facts, inputs), _table("Training data", facts.training_data), _measured(facts.evaluation),
        _table("Hyper-parameters", facts.training), _use(facts, inputs), _limits(facts, inputs),
    ]  # fmt: skip
    body = "\n\n".join(part.strip() for part in parts if part)
    return f"---\n{_metadata(inputs)}\n---\n\n{body}\n"


def _metadata(inputs: CardInputs) -> str:
    terms: dict[str, Any] = {"license": inputs.license}
    if inputs.license is None:
        link = f"https://huggingface.co/{inputs.base_model}"
        terms = {"license": BASE_LICENSE, "license_name": "as-base-model", "license_link": link}
    data = ModelCardData(
        base_model=inputs.base_model, base_model_relation="adapter", library_name="schemafill", tags=TAGS,
        datasets=list(inputs.datasets) or None, **terms,
    )  # fmt: skip
    return data.to_yaml().strip()


def _what(config: LlamaConfig, facts: HeadFacts, inputs: CardInputs) -> str:
    made_for = [f"`{inputs.base_model}`"]
    made_for += [f"revision `{facts.revision}`"] if facts.revision else []
    return f"""
# EAGLE-3 draft head for {inputs.base_model}, for tool calls

One decoder layer that drafts tokens for [{inputs.base_model}](https://huggingface.co/{inputs.base_model}) while it
writes tool calls. The target verifies every draft, so its output stays what it would have been without the head.

| | |
| --- | --- |
| made for | {", ".join(made_for)} |
| prompt while training | {facts.prompt}, calls written as `{facts.dialect}` |
| template sha256 | `{facts.template_sha256}` |
| tokenizer sha256 | `{facts.tokenizer_sha256}` |
| reads | `hidden_states` {", ".join(map(str, facts.capture_layers))}: outputs of layers {
        ", ".join(map(str, facts.output_layers))}, counted from 0 |
| drafts | {config.draft_vocab_size} of {config.vocab_size} tokens |
| hidden size, MLP, heads x size | {config.hidden_size}, {config.intermediate_size}, {
        config.num_attention_heads} x {config.head_dim} |
"""


def _table(title: str, values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_shown(value)} |" for name, value in _flat(values) if value is not None]
    return "\n".join([f"## {title}\n", "| | |", "| --- | --- |", *rows]) if rows else ""


def _measured(evaluation: Mapping[str, Any]) -> str:
    """Acceptance by depth and by what a token is part of, as far as it was measured."""
    parts = []
    if (length := evaluation.get("accepted_length")) is not None:
        starts = evaluation.get("starts")
        over = f", over {starts} starts of drafts in held-out rollouts" if starts else ""
        parts.append(
            f"Simulated accepted length **{length:.2f}** tokens per pass of the target, its own token included, where "
            f"each round drafts a chain{over}."
        )
    if depths := evaluation.get("acceptance"):
        known = evaluation.get("share_in_vocabulary") or [None] * len(depths)
        rows = [
            f"| {depth} | {share:.1%} | {'' if inside is None else f'{inside:.1%}'} |"
            for depth, (share, inside) in enumerate(zip(depths, known, strict=True), start=1)
        ]
        heading = ["| depth | right, where all before were right | can be drafted |", "| --- | --- | --- |"]
        parts.append("\n".join(heading + rows))
    if regions := evaluation.get("acceptance_by_region"):
        names = list(dict.fromkeys(name for depth in regions for name in depth))
        heading = [f"| depth | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
        rows = [
            f"| {depth} | " + " | ".join(f"{shares[name]:.1%}" if name in shares else "" for name in names) + " |"
            for depth, shares in enumerate(regions, start=1)
        ]
        parts.append("By what the token is part of:\n\n" + "\n".join(heading + rows))
    others = {name: value for name, value in evaluation.items() if name not in MEASURED and _is_scalar(value)}
    if rows := _table("", others):
        parts.append(rows.removeprefix("## \n").strip())
    return "\n\n".join(["## Measured", *parts]) if parts else ""


def _use(facts: HeadFacts, inputs: CardInputs) -> str:
    base, repo = inputs.base_model, inputs.repo
    return f"""
## Use

Here:

```bash
schemafill generate --target {base} --head {repo} --dialect {facts.dialect} --tools tools.json --request "..."
```

vLLM, with the form in `{VLLM_FOLDER}/`:

```bash
hf download {repo} --include "{VLLM_FOLDER}/*" --local-dir head
vllm serve {base} --speculative-config '{{"method": "eagle3", "model": "head/{VLLM_FOLDER}", "num_speculative_tokens": {
        DRAFT_TOKENS}}}'
```

SGLang, with the form at the top:

```bash
python -m sglang.launch_server --model-path {base} --speculative-algorithm EAGLE3 \\
  --speculative-draft-model-path {repo} --speculative-num-steps {DRAFT_TOKENS} --speculative-eagle-topk 1 \\
  --speculative-num-draft-tokens {DRAFT_TOKENS + 1}
```
"""


def _limits(facts: HeadFacts, inputs: CardInputs) -> str:
    simulated = " Figures are of a simulation on the target's own answers, not of a server." if facts.evaluation else ""
    return f"""
## Limits

It fits {inputs.base_model} and no other model, also none that was fine-tuned from it. It was made for tool calls under
the prompt named above; expect less under another prompt and in other text.{simulated}
"""


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(one) for one in value)
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)
