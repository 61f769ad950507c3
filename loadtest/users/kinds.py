"""The kinds of users, each a class of its own for Locust's picker."""

from __future__ import annotations

import logging
import time
from typing import Any, ClassVar

from locust import User, task
from locust.exception import StopUser

from loadtest.results import RequestResult
from loadtest.users.http import HttpAsker
from loadtest.users.options import KINDS
from loadtest.users.session import Session
from loadtest.users.triton import TritonAsker

logger = logging.getLogger(__name__)


class InflightUser(User):
    """Asks, notes what came back, thinks, and asks again; belongs to one tenant."""

    abstract = True
    kind: ClassVar[str] = ""
    session: ClassVar[Session | None] = None  # of this process; the locustfile sets it

    def on_start(self) -> None:
        session = InflightUser.session
        if session is None:  # the run did not begin; why is in the log
            raise StopUser
        self.run_session = session
        self.tenant = session.mix.next()
        self.writer = session.writer(self.tenant)
        self.http = HttpAsker(session.url, self.tenant, session.began_s, session.note)
        self._pause_s = 0.0

    def on_stop(self) -> None:
        if InflightUser.session is not None:
            self.http.close()

    def wait_time(self) -> float:
        return self._pause_s

    def pause_after(self, result: RequestResult) -> None:
        """Who was refused waits for as long as the server said."""
        options = self.run_session.options
        self._pause_s = self.writer.pause_s(options.think_s)
        if result.retry_after_s is not None and not options.ignore_retry_after:
            self._pause_s = max(self._pause_s, result.retry_after_s)
        elif result.has_failed:
            self._pause_s = max(self._pause_s, 1.0)  # a server that is down is not to be run over

    def generation(self, tokens: int) -> dict[str, Any]:
        """Answers are as long as was planned, so that two runs ask for the same work."""
        model = self._served(self.run_session.target.text, "no language model")
        return {"model": model, "max_tokens": tokens, "ignore_eos": True, "seed": self.writer.number()}

    def _served(self, name: str, what: str) -> str:
        if not name:
            logger.warning("%s is served: this %s user stops", what, self.kind)
            raise StopUser
        return name


class ChatUser(InflightUser):
    """One question at a time, the answer as a stream."""

    kind = "chat"
    weight = KINDS["chat"]

    @task
    def ask(self) -> None:
        lengths = self.writer.lengths()
        messages = opening(self.writer.shared_text)
        messages.append({"role": "user", "content": self.writer.text(lengths.prompt_tokens)})
        body = {**self.generation(lengths.answer_tokens), "messages": messages}
        self.pause_after(self.http.stream(self.kind, "/v1/chat/completions", body)[0])


class CompletionsUser(InflightUser):
    """A text to go on with, as a stream."""

    kind = "completions"
    weight = KINDS["completions"]

    @task
    def ask(self) -> None:
        lengths = self.writer.lengths()
        prompt = f"{self.writer.shared_text} {self.writer.text(lengths.prompt_tokens)}".strip()
        body = {**self.generation(lengths.answer_tokens), "prompt": prompt}
        self.pause_after(self.http.stream(self.kind, "/v1/completions", body)[0])


class EmbeddingsUser(InflightUser):
    """A text to be turned into a vector."""

    kind = "embeddings"
    weight = KINDS["embeddings"]

    @task
    def ask(self) -> None:
        model = self._served(self.run_session.target.embeddings, "no embedding model")
        text = self.writer.text(self.writer.lengths().prompt_tokens)
        self.pause_after(self.http.embed("/v1/embeddings", {"model": model, "input": text}))


class TritonUser(InflightUser):
    """Triton's own client, over gRPC, as a stream of the ensemble."""

    kind = "triton"
    weight = KINDS["triton"]

    def on_start(self) -> None:
        super().on_start()
        session = self.run_session
        self.triton = TritonAsker(session.grpc_address, self.tenant, session.began_s, session.note)

    def on_stop(self) -> None:
        super().on_stop()
        if InflightUser.session is not None:
            self.triton.close()

    @task
    def ask(self) -> None:
        model = self._served(self.run_session.target.text, "no language model")
        lengths = self.writer.lengths()
        prompt = f"{self.writer.shared_text} {self.writer.text(lengths.prompt_tokens)}".strip()
        self.pause_after(self.triton.stream(model, prompt, lengths.answer_tokens, self.writer.number()))


class ConversationUser(InflightUser):
    """Several turns, each with all that was said before; then a conversation about something else."""

    kind = "conversation"
    weight = KINDS["conversation"]

    def on_start(self) -> None:
        super().on_start()
        self.turns_left = 0
        self._begin_anew()

    @task
    def ask(self) -> None:
        lengths = self.writer.lengths()
        question = {"role": "user", "content": self.writer.text(lengths.prompt_tokens)}
        body = {**self.generation(lengths.answer_tokens), "messages": [*self.messages, question]}
        sticky = {"x-inflight-conversation": self.name}
        result, text = self.http.stream(self.kind, "/v1/chat/completions", body, sticky)
        self.pause_after(result)
        if result.is_answered:
            self.messages += [question, {"role": "assistant", "content": text}]
            self.turns_left -= 1
        elif result.status == 400:  # grown beyond what the model can hold
            self.turns_left = 0
        if self.turns_left <= 0:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.name = f"loadtest-{self.writer.number():x}-{time.monotonic_ns():x}"
        self.messages = opening(self.writer.shared_text)
        self.turns_left = self.writer.turns(self.run_session.options.turns)


def opening(shared_text: str) -> list[dict[str, str]]:
    """Of a chat: instructions where prompts are to share their beginning."""
    return [{"role": "system", "content": shared_text}] if shared_text else []


EVERY: dict[str, type[InflightUser]] = {
    user.kind: user for user in (ChatUser, CompletionsUser, EmbeddingsUser, TritonUser, ConversationUser)
}
