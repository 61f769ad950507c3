"""`inflight release` beside `add`: what the commands do to the store, and what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.commands.release.control import NO_ROUTER
from router.control.releases import records
from router.control.releases.adoption import adopt
from router.control.releases.states import State
from router.routing.split import Shadow, Sticky
from tests.launcher.commands.release.conftest import SYNTHETIC, Shell
from tests.launcher.commands.release.materials import write_checkpoint
from tests.router.control.releases.values import built_in

if TYPE_CHECKING:
    from router.control.releases.records import Rollout
    from router.routing.split import ModelSplit


def split_of(inflight: Shell, model: str = "m") -> ModelSplit:
    with inflight.store() as store, store.read() as connection:
        found = records.find_split(connection, model)
    assert found is not None
    return found


def rollout_of(inflight: Shell, model: str = "m") -> Rollout:
    with inflight.store() as store, store.read() as connection:
        return records.list_rollouts(connection, model)[0]


def test_list_and_show_describe_the_releases(served: Shell) -> None:
    listed = served("list")
    assert all(f"m@{version}" in listed for version in (1, 2, 3))
    kept = served.json("list", "m")
    assert [each["notes"] for each in kept] == ["number 1", "number 2", "number 3"]
    assert served.json("list", "other") == []
    shown = served("show", "m@2")
    for words in (kept[1]["manifest"]["weights_sha256"], kept[1]["digest"], "inflight_runtime=synthetic"):
        assert words in shown
    assert served.json("show", "m@2") == kept[1]


def test_without_releases_list_and_history_say_so(inflight: Shell) -> None:
    assert inflight("list").startswith("There are no releases yet")
    assert inflight("list", "m").startswith("There are no releases of m yet")
    assert inflight("history", "m") == "There are no events of releases of m yet.\n"


def test_a_built_in_release_has_no_files_to_verify(inflight: Shell) -> None:
    with inflight.store() as store:
        adopt(store, built_in(model="m"))
    assert "comes with the stack" in inflight("verify", "m@1")
    assert "0 files" not in inflight("show", "m@1")


def test_an_unknown_release_is_refused_with_the_known_ones(served: Shell) -> None:
    for command in ("show", "verify", "remove", "load", "unload", "canary"):
        assert "release m@9 not found; there are m@1, m@2, m@3" in served.refusal(command, "m@9")
    assert "'m' does not name a version; write m@VERSION" in served.refusal("show", "m")
    assert "'x' is not a version; allowed: 1 to" in served.refusal("show", "m@x")
    assert "'../x' cannot be the name of a model" in served.refusal("show", "../x@1")


def test_verify_finds_changed_files(inflight: Shell, tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path / "m") / "model.safetensors"
    inflight("add", "m", str(weights.parent), *SYNTHETIC)
    assert inflight("verify", "m@1").startswith("m@1 has not changed since it was added: ")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"\xff")
    changed = inflight.ask("verify", "m@1")
    assert changed.exit_code == 1
    assert "m@1 has changed since it was added: model.safetensors has changed" in changed.output
    weights.write_bytes(content)
    (inflight.repository / "m.1" / "1" / "stranger.py").write_text("")
    assert "did not exist when it was added" in inflight.ask("verify", "m@1").output


def test_remove_deletes_the_files_of_one_release_alone(served: Shell) -> None:
    checkpoint = Path(served.release("m", 3).manifest.checkpoint_dir)
    assert "m@3 is ready: unload it first" in served.refusal("remove", "m@3")
    assert "m@1 is in the traffic split of m" in served.refusal("remove", "m@1")
    served.comes_to("m", 3, State.UNLOADED)
    assert "m@3 is removed." in served("remove", "m@3")
    assert not [name for name in served.files() if "m.3" in name or "m@3" in name]
    steps = ("", ".preprocessing", ".tensorrt_llm", ".postprocessing")
    left = {f"m.{version}{step}" for version in (1, 2) for step in steps}
    assert {name.split("/")[1] for name in served.files() if "repository" in name} == left
    assert (checkpoint / "model.safetensors").is_file()
    assert "m@4 is added" in served("add", "m", str(checkpoint), *SYNTHETIC), "numbers do not come back"


def test_a_split_sets_weights_stickiness_and_shadow(served: Shell) -> None:
    said = served("split", "m", "1=90%", "2=0.1", "--sticky", "user", "--shadow", "3=5%")
    assert "90% to m@1, 10% to m@2; sticky by user." in said
    split = split_of(served)
    assert (split.arms, split.sticky, split.shadow) == (((1, 0.9), (2, 0.1)), Sticky.USER, Shadow(3, 0.05))
    served("split", "m", "1=1")
    assert (split_of(served).sticky, split_of(served).shadow) == (Sticky.USER, None)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["1=0.9", "2=0.2"], "the weights add up to 1.1, not to 1"),
        (["1=0.9", "9=0.1"], "release m@9 not found"),
        (["1=0.5", "1=0.5"], "each once"),
        (["1"], "'1' is not a version and its share"),
        (["1=1", "--sticky", "mood"], "sticky 'mood': allowed are request, tenant, user, conversation"),
        (["1=1", "--shadow", "2=0"], "the share of a shadow is 0"),
    ],
)
def test_an_invalid_split_is_refused_and_changes_nothing(
    words: list[str], refusal: str, served: Shell
) -> None:
    before = split_of(served)
    assert refusal in served.refusal("split", "m", *words)
    assert split_of(served) == before


def test_a_split_onto_a_release_that_is_not_ready_is_refused_at_once(served: Shell) -> None:
    served.comes_to("m", 2, State.FAILED, "out of memory")
    assert "m@2 is failed: out of memory; first `inflight release load m@2`" in served.refusal(
        "split", "m", "1=0.5", "2=0.5"
    )


def test_tolerances_are_set_for_a_model_and_reset(served: Shell) -> None:
    assert "latency_ratio    1.25" in served("tolerance", "m")
    said = served("tolerance", "m", "latency_ratio=2", "error_rate=1%")
    assert "latency_ratio    2" in said
    assert "error_rate       1%" in said
    served("canary", "m@2", "--tolerance", "error_rate=0.5%", "--mirror", "0.5/s", "--no-rehearsal")
    plan = rollout_of(served).plan
    assert (plan.tolerance.latency_ratio, plan.tolerance.error_rate) == (2.0, 0.005)
    assert (plan.mirror_per_s, plan.is_rehearsed) == (0.5, False)
    assert "latency_ratio    1.25" in served("tolerance", "m", "--reset")
    assert "model other not found" in served.refusal("tolerance", "other", "latency_ratio=2")
    assert "--tolerance 'speed=2'; allowed" in served.refusal("tolerance", "m", "speed=2")


def test_recorded_prompts_are_asked_again_only_where_prompts_are_logged(served: Shell) -> None:
    refusal = served.refusal("canary", "m@2", "--replay", "1/s")
    assert "--replay: recorded prompts can only be replayed where prompts are logged" in refusal
    assert "prompt_log_dir" in refusal


def test_a_canary_is_planned_paused_resumed_and_promoted(served: Shell, tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    golden.write_text('{"prompt": "2+2?", "contains": "4"}\n')
    said = served(
        "canary", "m@2", "--steps", "10%,100%", "--min-requests", "20", "--min-duration", "5s",
        "--golden", str(golden), "--tolerance", "error_rate=1%", "--tolerance", "latency_ratio=1.5",
    )  # fmt: skip
    assert "m@2 is rolled out against m@1, in steps of 10%, 100%." in said
    assert "The model had no requests in the last minutes" in said
    rollout = rollout_of(served)
    assert (rollout.stable, rollout.canary, rollout.state.value) == (1, 2, "running")
    assert (rollout.plan.weights, rollout.plan.min_requests, rollout.plan.min_duration_s) == ((0.1, 1), 20, 5)
    assert (rollout.plan.tolerance.error_rate, rollout.plan.tolerance.latency_ratio) == (0.01, 1.5)
    assert [each.prompt for each in rollout.golden] == ["2+2?"]
    assert "m@2 is being rolled out" in served.refusal("canary", "m@3")
    served("pause", "m")
    assert rollout_of(served).state.value == "paused"
    served("resume", "m")
    assert rollout_of(served).state.value == "running"
    assert "All requests to m go to m@2." in served("promote", "m", "--reason", "looks good")
    assert (rollout_of(served).state.value, rollout_of(served).reason) == ("promoted", "looks good")
    assert split_of(served).standby == 1
    assert "m has no rollout" in served.refusal("promote", "m")
    assert "All requests to m go to m@1." in served("rollback", "m", "--reason", "the night shift complains")
    assert split_of(served).arms == ((1, 1.0),)
    history = served.json("history", "m")
    assert [each["what"] for each in history[:3]] == ["rollback", "promote", "resume"]
    assert "the night shift complains" in served("history")


def test_history_shows_all_of_a_split(served: Shell) -> None:
    served("split", "m", "1=1", "--shadow", "2=10%", "--sticky", "tenant")
    assert served.json("history", "m")[0]["reason"] == "1=1, sticky by tenant, shadow 2=0.1"


def test_unreadable_golden_prompts_are_reported(served: Shell, tmp_path: Path) -> None:
    assert "No such file" in served.refusal("canary", "m@2", "--golden", str(tmp_path / "none"))
    (tmp_path / "latin").write_bytes(b"\xff")
    assert "this is not UTF-8" in served.refusal("canary", "m@2", "--golden", str(tmp_path / "latin"))


def test_steps_that_do_not_reach_all_of_the_traffic_are_refused(served: Shell) -> None:
    assert "the last step of a rollout has to be 1" in served.refusal("canary", "m@2", "--steps", "1%,50%")
    assert "have to increase" in served.refusal("canary", "m@2", "--steps", "50%,1%,100%")
    assert "No such file" in served.refusal("canary", "m@2", "--golden", "nowhere.jsonl")


def test_the_first_release_of_a_model_serves_once_it_is_ready(inflight: Shell, tmp_path: Path) -> None:
    inflight("add", "m", str(write_checkpoint(tmp_path / "m")), *SYNTHETIC)
    assert "m is not served" in inflight.refusal("canary", "m@1")
    said = inflight("promote", "m@1")
    assert "All requests to m go to m@1, once it is ready." in said
    assert NO_ROUTER in said
    assert inflight.release("m", 1).wanted
    assert "`inflight release canary m@2`" not in inflight("list")
    assert "inflight release canary m@2" in inflight("add", "m", str(tmp_path / "m"), *SYNTHETIC)


def test_a_command_warns_when_no_router_is_in_control(served: Shell) -> None:
    assert NO_ROUTER in served("split", "m", "1=1")
    with served.router_in_control():
        assert NO_ROUTER not in served("split", "m", "1=1")
        assert "m@2 is to be loaded." in served("load", "m@2", "--no-wait")


def test_the_only_release_is_removed_when_the_model_is_withdrawn(inflight: Shell, tmp_path: Path) -> None:
    inflight("add", "m", str(write_checkpoint(tmp_path / "m")), *SYNTHETIC)
    inflight("promote", "m@1")
    inflight.comes_to("m", 1, State.READY)
    assert "m@1 gets 100% of the requests" in inflight.refusal("unload", "m@1", "--no-wait")
    inflight("unload", "m@1", "--no-wait", "--withdraw")
    assert not inflight.release("m", 1).wanted


def test_help_does_not_wait_for_the_database_or_triton() -> None:
    program = (
        "import sys; from launcher.commands.main import app; "
        "print([name for name in ('sqlalchemy', 'google.protobuf', 'numpy', 'grpc') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
