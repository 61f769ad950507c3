from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.triton_adapter.request_parameters import (
    Configuration,
    Limits,
    asks_for_report,
    decode_cache_salt,
    decode_configuration,
    decode_echo,
    decode_logit_bias,
    decode_min_p,
    decode_part,
    decode_stop_token_ids,
    decode_tier,
    decode_top_log_probs,
    decode_trace,
)
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.pools import Part
from python_backend.wire.tiers import Tier

NOW, MOST = Limits(8, 64), Limits(16, 512)
TARGETS: dict[Tier, float | None] = {Tier.INTERACTIVE: 20.0, Tier.STANDARD: None, Tier.BATCH: 500.0}


def test_a_tier_is_one_of_three_and_standard_unless_named() -> None:
    assert decode_tier({}) is Tier.STANDARD
    assert [decode_tier({"inflight_tier": name}) for name in ("interactive", "standard", "batch")] == list(
        Tier
    )


@pytest.mark.parametrize("tier", ["urgent", "BATCH", "", 3])
def test_an_unknown_tier_is_refused(tier: Any) -> None:
    with pytest.raises(InflightError, match="inflight_tier"):
        decode_tier({"inflight_tier": tier})


def test_a_bias_names_tokens_by_their_ids() -> None:
    assert decode_logit_bias({}) == {}
    assert decode_logit_bias({"inflight_logit_bias": '{"11": -100, "7": 2.5}'}) == {11: -100.0, 7: 2.5}


@pytest.mark.parametrize(
    "text", ["", "[]", "5", '{"a": 1}', '{"-3": 1}', '{"3": "x"}', '{"3": NaN}', 7, "[" * 9000]
)
def test_an_invalid_bias_is_refused(text: Any) -> None:
    with pytest.raises(InflightError, match="inflight_logit_bias"):
        decode_logit_bias({"inflight_logit_bias": text})


def test_the_least_share_and_stop_tokens_come_as_texts() -> None:
    assert (decode_min_p({}), decode_min_p({"inflight_min_p": "0.05"})) == (0.0, 0.05)
    assert decode_stop_token_ids({}) == ()
    assert decode_stop_token_ids({"inflight_stop_token_ids": "[2, 11]"}) == ((2,), (11,))


@pytest.mark.parametrize("text", ["", "x", "-0.1", "1.1", "nan", 0.5])
def test_an_invalid_least_share_is_refused(text: Any) -> None:
    with pytest.raises(InflightError, match="inflight_min_p"):
        decode_min_p({"inflight_min_p": text})


@pytest.mark.parametrize("text", ["", "{}", "[-1]", "[true]", '["a"]', 3, "[" * 9000])
def test_invalid_stop_tokens_are_refused(text: Any) -> None:
    with pytest.raises(InflightError, match="inflight_stop_token_ids"):
        decode_stop_token_ids({"inflight_stop_token_ids": text})


def test_tenants_share_the_cache_unless_they_are_isolated() -> None:
    here, there = {"tenant": "a"}, {"tenant": "b"}
    assert decode_cache_salt(here, False) == decode_cache_salt(there, False) == ""
    assert decode_cache_salt(here, True) != decode_cache_salt(there, True)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_no_salt_makes_one_tenant_look_like_another(one: tuple[str, str], other: tuple[str, str]) -> None:
    salts = [
        decode_cache_salt({"tenant": tenant, "inflight_cache_salt": salt}, True)
        for tenant, salt in (one, other)
    ]
    assert (salts[0] == salts[1]) == (one == other)


def test_a_salt_must_be_text() -> None:
    with pytest.raises(InflightError, match="inflight_cache_salt"):
        decode_cache_salt({"inflight_cache_salt": 5}, False)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ('{"max_step_tokens": 256, "max_batch_size": 16}', Limits(16, 256)),
        ('{"max_batch_size": 4}', Limits(4, 64)),
        ('{"max_step_tokens": 8}', Limits(8, 8)),
    ],
)
def test_new_limits_are_read_and_the_others_kept(text: str, limits: Limits) -> None:
    found = decode_configuration({"inflight_configure": text}, Configuration(NOW, TARGETS), MOST)
    assert found == Configuration(limits, TARGETS)


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ('{"inter_token_ms": {"standard": 50, "batch": null}}', (20.0, 50, None)),
        ('{"inter_token_ms": {"interactive": 0.5}}', (0.5, None, 500.0)),
        ('{"inter_token_ms": {}}', (20.0, None, 500.0)),
        ('{"max_batch_size": 8}', (20.0, None, 500.0)),
    ],
)
def test_new_objectives_are_read_and_the_others_kept(text: str, targets: tuple[float | None, ...]) -> None:
    found = decode_configuration({"inflight_configure": text}, Configuration(NOW, TARGETS), MOST)
    assert found == Configuration(NOW, dict(zip(Tier, targets, strict=True)))


def test_there_are_no_objectives_at_first() -> None:
    assert set(Configuration(NOW).inter_token_ms.items()) == {(tier, None) for tier in Tier}


def test_a_report_is_requested_by_a_boolean() -> None:
    assert [asks_for_report({}), asks_for_report({"inflight_report": True})] == [False, True]
    with pytest.raises(InflightError, match="inflight_report is 1; allowed: a boolean"):
        asks_for_report({"inflight_report": 1})


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("not json", "max_batch_size, max_step_tokens or inter_token_ms"),
        ("[]", "max_batch_size, max_step_tokens or inter_token_ms"),
        ("{}", "max_batch_size, max_step_tokens or inter_token_ms"),
        ('{"max_beam_width": 2}', "max_batch_size, max_step_tokens or inter_token_ms"),
        ('{"max_batch_size": 17}', "1 to 16"),
        ('{"max_batch_size": 0}', "1 to 16"),
        ('{"max_batch_size": true}', "1 to 16"),
        ('{"max_step_tokens": 2.5}', "1 to 512"),
        ('{"max_step_tokens": 7}', "must not be smaller"),
        ("[" * 9000, "max_batch_size, max_step_tokens or inter_token_ms"),
        ('{"inter_token_ms": 5}', "any of interactive, standard, batch"),
        ('{"inter_token_ms": {"urgent": 5}}', "any of interactive, standard, batch"),
        ('{"inter_token_ms": {"batch": 0}}', "batch is 0; allowed: above 0"),
        ('{"inter_token_ms": {"batch": true}}', "above 0, up to 3.6e"),
        ('{"inter_token_ms": {"batch": "5"}}', "or null for none"),
        ('{"inter_token_ms": {"batch": NaN}}', "above 0"),
        ('{"inter_token_ms": {"batch": 1e7}}', "above 0"),
        (7, "a string"),
    ],
)
def test_limits_out_of_range_are_refused_with_what_is_allowed(value: Any, allowed: str) -> None:
    with pytest.raises(InflightError, match=allowed) as failure:
        decode_configuration({"inflight_configure": value}, Configuration(NOW), MOST)
    assert failure.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("pool", "parts"),
    [
        ("both", [Part.WHOLE]),
        ("prefill", [Part.WHOLE, Part.CONTEXT]),
        ("decode", [Part.WHOLE, Part.GENERATION]),
    ],
)
def test_an_engine_does_the_parts_of_its_pool_and_refuses_others_by_name(
    pool: str, parts: list[Part]
) -> None:
    assert decode_part({}, pool) is Part.WHOLE
    for part in Part:
        if part in parts:
            assert decode_part({"request_type": part.value}, pool) is part
        else:
            with pytest.raises(
                InflightError, match=f"'{part.value}'; this engine, whose .* is {pool}, allows only"
            ):
                decode_part({"request_type": part.value}, pool)
    with pytest.raises(InflightError, match=r"request_type is 'half'; .* allows only context_and_generation"):
        decode_part({"request_type": "half"}, pool)


def test_top_log_probs_are_a_number_or_not_requested() -> None:
    assert decode_top_log_probs({}) is None
    assert [decode_top_log_probs({"inflight_top_log_probs": count}) for count in (0, 20)] == [0, 20]


@pytest.mark.parametrize("count", [-1, 21, True, "3", 2.0])
def test_invalid_top_log_probs_are_refused(count: Any) -> None:
    with pytest.raises(InflightError, match=r"inflight_top_log_probs .* allowed: 0 to 20"):
        decode_top_log_probs({"inflight_top_log_probs": count})


def test_an_echo_is_requested_by_a_boolean() -> None:
    assert [decode_echo({}), decode_echo({"inflight_echo": True})] == [False, True]
    with pytest.raises(InflightError, match="inflight_echo is 'yes'; allowed: a boolean"):
        decode_echo({"inflight_echo": "yes"})


def test_steps_are_requested_by_a_boolean() -> None:
    assert [decode_trace({}), decode_trace({"inflight_trace": True})] == [False, True]
    with pytest.raises(InflightError, match="inflight_trace is 'yes'; allowed: a boolean"):
        decode_trace({"inflight_trace": "yes"})
