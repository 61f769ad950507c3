"""Turns one row of inputs into what the engine is asked to generate."""

from __future__ import annotations

from python_backend.engine.request import (
    GenerationRequest,
    Guide,
    GuideKind,
    Retention,
    RetentionRange,
    SamplingParams,
)
from python_backend.triton_adapter.inputs import RowInputs, invalid
from python_backend.wire.tiers import Tier

_OPEN = -1  # in the retention inputs: to the prompt's end, or for ever
_HIGHEST_PRIORITY = 100


def decode_generation(row: RowInputs, tier: Tier, cache_salt: str, max_sequences: int) -> GenerationRequest:
    prompt_ids = row.token_ids("input_ids")
    if not prompt_ids:
        raise invalid("input_ids", "input_ids is missing or empty; a prompt has at least one token")
    length = row.integer("input_lengths", len(prompt_ids))
    if not 0 < length <= len(prompt_ids):
        raise invalid(
            "input_lengths", f"input_lengths is {length}; allowed: 1 to {len(prompt_ids)}, the ids given"
        )
    sequences = row.integer("num_return_sequences", 1, least=1)
    if sequences > max_sequences:
        raise invalid(
            "num_return_sequences",
            f"num_return_sequences is {sequences}; allowed: 1 to {max_sequences}, the engine's largest batch",
        )
    return GenerationRequest(
        prompt_ids=prompt_ids[:length],
        images=row.files("images"),
        max_new_tokens=row.integer("request_output_len", 0, least=1),
        end_id=row.integer("end_id", -1),
        stop_sequences=row.words("stop_words_list"),
        sampling=_sampling(row),
        bad_sequences=row.words("bad_words_list"),
        token_bias=row.sparse("embedding_bias"),
        guide=_guide(row),
        num_return_sequences=sequences,
        tier=tier,
        cache_salt=cache_salt,
        retention=_retention(row),
        returns_log_probs=row.boolean("return_log_probs"),
        returns_context_logits=row.boolean("return_context_logits"),
        returns_generation_logits=row.boolean("return_generation_logits"),
    )


def _sampling(row: RowInputs) -> SamplingParams:
    unset = SamplingParams()
    return SamplingParams(
        temperature=row.number("temperature", unset.temperature, least=0),
        top_k=row.integer("runtime_top_k", unset.top_k, least=0),
        top_p=row.number("runtime_top_p", unset.top_p, most=1),
        # 0 would let top_p decay to nothing at all, so it means the default, as everywhere in the contract.
        top_p_min=row.number("runtime_top_p_min", 0, least=0, most=1) or unset.top_p_min,
        top_p_decay=row.number("runtime_top_p_decay", unset.top_p_decay, above=0, most=1),
        top_p_reset_id=row.integer("runtime_top_p_reset_ids", unset.top_p_reset_id, least=-1),
        seed=row.integer("seed", unset.seed),
        repetition_penalty=row.number("repetition_penalty", unset.repetition_penalty, above=0),
        presence_penalty=row.number("presence_penalty", unset.presence_penalty),
        frequency_penalty=row.number("frequency_penalty", unset.frequency_penalty),
        min_tokens=row.integer("min_tokens", unset.min_tokens, least=0),
    )


def _guide(row: RowInputs) -> Guide | None:
    kind, text = row.text("guided_decoding_guide_type"), row.text("guided_decoding_guide")
    if not kind and not text:
        return None
    known = [each.value for each in GuideKind]
    if kind not in known:
        raise invalid(
            "guided_decoding_guide_type",
            f"guided_decoding_guide_type is {kind!r}; allowed: {', '.join(known)}",
        )
    if kind == GuideKind.JSON.value:
        return Guide(GuideKind.JSON)  # any JSON: there is nothing for a text to say
    if not text:
        raise invalid("guided_decoding_guide", f"guided_decoding_guide is empty; {kind} needs its text")
    return Guide(GuideKind(kind), text)


def _retention(row: RowInputs) -> Retention:
    return Retention(
        ranges=_retention_ranges(row),
        decode_priority=_priority(
            "retention_decode_priority",
            row.integer("retention_decode_priority", Retention.ORDINARY_PRIORITY),
        ),
        decode_duration_ms=_duration_ms(
            "retention_decode_duration_ms", row.integer("retention_decode_duration_ms", _OPEN)
        ),
    )


def _retention_ranges(row: RowInputs) -> tuple[RetentionRange, ...]:
    names = [f"retention_token_range_{what}" for what in ("starts", "ends", "priorities", "durations_ms")]
    starts, ends, priorities, durations_ms = (row.integers(name) for name in names)
    durations_ms = durations_ms or [_OPEN] * len(starts)
    for name, values in zip(names[1:], (ends, priorities, durations_ms), strict=True):
        if len(values) != len(starts):
            raise invalid(
                name, f"{name} has {len(values)} values; retention_token_range_starts has {len(starts)}"
            )
    for start, end in zip(starts, ends, strict=True):
        if start < 0 or (end != _OPEN and end <= start):
            raise invalid(
                names[0],
                f"the retention range {start} to {end} is empty or begins before 0; allowed: 0 or more to "
                "something larger, or to -1 (the last token)",
            )
    return tuple(
        RetentionRange(
            start,
            None if end == _OPEN else end,
            _priority(names[2], priority),
            _duration_ms(names[3], duration_ms),
        )
        for start, end, priority, duration_ms in zip(starts, ends, priorities, durations_ms, strict=True)
    )


def _priority(name: str, priority: int) -> int:
    if not 0 <= priority <= _HIGHEST_PRIORITY:
        raise invalid(name, f"{name} is {priority}; allowed: 0 to {_HIGHEST_PRIORITY}")
    return priority


def _duration_ms(name: str, duration_ms: int) -> int | None:
    if duration_ms == _OPEN:
        return None
    if duration_ms < 0:
        raise invalid(name, f"{name} is {duration_ms}; allowed: 0 or more, or -1 for no expiry")
    return duration_ms
