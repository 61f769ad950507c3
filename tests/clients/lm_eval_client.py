"""EleutherAI's evaluation harness, on two questions of a task that it has with it."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["lm-eval[api]==0.4.13", "transformers==5.22.2"]
# ///

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.clients.uses import STACK, check, main, run, use

QUESTIONS = [
    {"question": "2 + 2 =", "answer": "4"},
    {"question": "The capital of France is", "answer": "Paris"},
]
TASK = """
task: two_questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
output_type: {kind}
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: {target}
{more}
"""
GENERATED = 'generation_kwargs: {until: ["\\n"], max_gen_toks: 8}\nmetric_list: [{metric: exact_match}]'
CHOSEN = 'doc_to_choice: [" 4", " Paris"]\nmetric_list: [{metric: acc}]'


def evaluate(kind: str, target: str, more: str, *model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "questions.jsonl"
        data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
        task = TASK.format(data=data, kind=kind, target=target, more=more)
        (Path(folder) / "task.yaml").write_text(task)
        shown = run(
            *("lm_eval", "--tasks", "two_questions", "--include_path", folder, *model, "--batch_size", "1"),
            OPENAI_API_KEY=STACK.key,
        )
    check("two_questions" in shown, shown)


@use("generation by chat completions")
def generation() -> None:
    at = f"model={STACK.model},base_url={STACK.v1}/chat/completions,num_concurrent=1"
    evaluate(
        *("generate_until", '"{{answer}}"', GENERATED),
        *("--model", "local-chat-completions", "--model_args", at, "--apply_chat_template"),
    )


@use("likelihoods of choices by completions")
def likelihoods() -> None:
    at = f"model={STACK.model},base_url={STACK.v1}/completions,tokenized_requests=False"
    at += f",tokenizer_backend=huggingface,tokenizer={STACK.tokenizer}"
    evaluate(*("multiple_choice", "0", CHOSEN), *("--model", "local-completions", "--model_args", at))


if __name__ == "__main__":
    main()
