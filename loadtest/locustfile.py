"""What Locust loads: `locust -f loadtest/locustfile.py`, or `inflight loadtest run`, which calls it.

Locust has made sockets, threads and queues cooperative before this file is read; gRPC's C core has to be
told on its own, before its first channel, or one user's stream would stop all the others.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import locust
from grpc.experimental import gevent as grpc_under_gevent  # type: ignore[attr-defined]  # no types
from locust.runners import MasterRunner

# Locust looks first where it was started, and a package `loadtest` that is there is not this one.
sys.path.insert(0, str(Path(__file__).parents[1]))

from loadtest.shapes.locust_shape import ChosenShape, chosen_curve
from loadtest.tenants import TenantsError
from loadtest.traces import TraceError
from loadtest.users.kinds import (
    EVERY,
    ChatUser,
    CompletionsUser,
    ConversationUser,
    EmbeddingsUser,
    InflightUser,
    TritonUser,
)
from loadtest.users.models import TargetError
from loadtest.users.options import add_options, read_kinds
from loadtest.users.session import Session, begin
from loadtest.users.web_page import guard

__all__ = [
    "ChatUser",
    "ChosenShape",
    "CompletionsUser",
    "ConversationUser",
    "EmbeddingsUser",
    "TritonUser",
]

grpc_under_gevent.init_gevent()
logger = logging.getLogger(__name__)
_WATCH_INTERVAL_S = 1.0


def weigh(environment: Any, **_: Any) -> None:
    """Only the kinds that were asked for, unless classes were named or can be picked."""
    options = environment.parsed_options
    if options is None or options.user_classes or options.class_picker:
        return
    try:
        kinds = read_kinds(options.kinds)
        chosen_curve(options)
    except (ValueError, TraceError) as error:
        raise SystemExit(f"locust: {error}") from None
    for kind, user in EVERY.items():
        user.weight = kinds.get(kind, 0)
    environment.user_classes[:] = [EVERY[kind] for kind in kinds]


def start(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return  # workers ask, a master only adds up
    try:
        InflightUser.session = begin(environment)
    except (TargetError, TenantsError, TraceError, ValueError) as error:
        InflightUser.session = None
        logger.error("%s", error)
        environment.process_exit_code = 2
        environment.runner.quit()
        return
    # A greenlet, as all threads are here.
    threading.Thread(target=_watch, args=(InflightUser.session,), daemon=True).start()


def stop(environment: Any, **_: Any) -> None:
    session, InflightUser.session = InflightUser.session, None
    if session is not None and session.recorder is not None:
        session.recorder.close()


def _watch(session: Session) -> None:
    """How many users there are; and how late this very greenlet is, which is how late all of them are."""
    while InflightUser.session is session:
        planned_s = time.perf_counter() + _WATCH_INTERVAL_S
        time.sleep(_WATCH_INTERVAL_S)
        now_s = time.perf_counter()
        if session.recorder is not None:
            users = session.environment.runner.user_count
            session.recorder.note_users(now_s - session.began_s, users, now_s - planned_s)


events: Any = locust.events
events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(weigh)
events.init.add_listener(guard)
events.test_start.add_listener(start)
events.test_stop.add_listener(stop)
